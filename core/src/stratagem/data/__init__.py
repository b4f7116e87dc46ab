"""Batches of a run: who reads which sample, and how a run continues with the very next one."""
