"""What the command `stratagem checkpoint` does, without its words: verify, compare, prune."""
