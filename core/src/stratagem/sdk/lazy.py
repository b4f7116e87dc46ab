"""For a plugin's package: names that are imported when they are first used."""

from stratagem.names.lazy import lazy_names

__all__ = ["lazy_names"]
