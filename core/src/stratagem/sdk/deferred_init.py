"""Modules that are constructed without memory, and materialized where their values are wanted."""

from stratagem.strategies.deferred_init import Construction, Materializer, own_modules

__all__ = [
    "Construction",
    "Materializer",
    "own_modules",
]
