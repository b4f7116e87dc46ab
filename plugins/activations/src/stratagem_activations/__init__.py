"""Less memory for activations, under any strategy: recomputed in backward, or kept on the host.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_activations.extension import Activations

__all__ = ["Activations"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".extension": "Activations"})
