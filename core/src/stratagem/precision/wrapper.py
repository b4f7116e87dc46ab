"""`PrecisionWrapper`: the base of what a wrapper of the hook `precision` returns."""

from __future__ import annotations

from stratagem.plugin.forwarding import forwards
from stratagem.precision.base import Precision


@forwards
class PrecisionWrapper(Precision):
    """Hands every call on to `inner`; a subclass overrides what it changes.

    Args:
        inner: what the wrapped implementation answered with.
    """

    def __init__(self, inner: Precision) -> None:
        self.inner = inner
