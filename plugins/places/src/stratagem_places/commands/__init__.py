"""Commands for runs that are somewhere else."""
