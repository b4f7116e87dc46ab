"""Two checkpoints compared: what is in them, where they first differ, and what is said of it."""
