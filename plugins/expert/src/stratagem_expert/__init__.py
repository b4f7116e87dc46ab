"""Expert parallelism: the experts of a mixture split among ranks, as an axis that composes with others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_expert.axis import ExpertAxis

__all__ = ["ExpertAxis"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".axis": "ExpertAxis"})
