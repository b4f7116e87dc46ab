"""Constructing a module without memory, and giving its tensors their values where they are needed."""

from __future__ import annotations

from stratagem.strategies.deferred_init.deferred import Construction
from stratagem.strategies.deferred_init.materialize import Materializer, own_modules

__all__ = ["Construction", "Materializer", "own_modules"]
