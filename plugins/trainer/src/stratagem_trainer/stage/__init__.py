"""One command on every rank: build what it needs, run it, and return the results."""
