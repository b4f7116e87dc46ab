"""What is said of checkpoints without knowing their format: the protocol, its wrapper, and how errors name a path."""
