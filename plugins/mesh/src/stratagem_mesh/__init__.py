"""Composes parallelisms from separate plugins on one mesh of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_mesh.applying import apply_axes
    from stratagem_mesh.prepared import ComposedPrepared
    from stratagem_mesh.strategy import ComposedStrategy, compose

__all__ = ["ComposedPrepared", "ComposedStrategy", "apply_axes", "compose"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".applying": "apply_axes",
            ".prepared": "ComposedPrepared",
            ".strategy": "ComposedStrategy compose",
        },
    )
