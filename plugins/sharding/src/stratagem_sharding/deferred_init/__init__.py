"""Deferred initialization: construct a module without memory, and materialize its tensors where they are needed."""

from __future__ import annotations

from stratagem_sharding.deferred_init.deferred import Construction
from stratagem_sharding.deferred_init.materialize import Materializer, own_modules
from stratagem_sharding.deferred_init.pending import deferred, pop_deferred

__all__ = ["Construction", "Materializer", "deferred", "own_modules", "pop_deferred"]
