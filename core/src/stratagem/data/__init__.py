"""Batches of a run: which rank reads which sample, and how a resumed run continues with the next one."""
