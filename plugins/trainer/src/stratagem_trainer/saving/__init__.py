"""Checkpoints of a run: their paths, their content, and how a run resumes from one."""
