"""Own loops drawn from a grammar, held against the same text in one process: see run.py."""
