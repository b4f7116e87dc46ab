"""Collects what modules log, reduces it over ranks, and passes it to loggers."""
