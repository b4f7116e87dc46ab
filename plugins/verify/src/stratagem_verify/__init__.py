"""`verify`: check that a strategy trains a user's module as one process does. docs/guides/verify.md.


Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_verify.verification import Verification, verify

__all__ = ["Verification", "verify"]

if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(__name__, {".verification": "Verification verify"})
