"""Bugs rebuilt from public issues, with which `stratagem diff` is measured: docs/corpus.md."""
