"""Checkpoints of a run: where they are, what is in them, and how a run resumes from one."""
