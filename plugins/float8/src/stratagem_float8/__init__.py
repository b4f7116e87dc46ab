"""Matrix products of linear layers in float8, through torchao, under any strategy that declares it.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_float8.precision import Float8

__all__ = ["Float8"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".precision": "Float8"})
