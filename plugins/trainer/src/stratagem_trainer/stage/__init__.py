"""One stage on every rank: build its objects, run it, and return the results."""
