"""Many fits by a search over settings: docs/guides/sweeps.md. Names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_sweep.pruning import PruningCallback

__all__ = ["PruningCallback"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".pruning": "PruningCallback"})
