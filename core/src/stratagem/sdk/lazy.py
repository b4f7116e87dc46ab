"""For a plugin's package: names that are imported when they are first used."""

from stratagem.names.lazy import import_from, lazy_names

__all__ = ["import_from", "lazy_names"]
