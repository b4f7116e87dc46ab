"""`PrecisionWrapper`: the base class for results of wrappers of the `precision` hook."""

from __future__ import annotations

from stratagem.plugin.forwarding import forwards
from stratagem.precision.base import Precision
from stratagem.precision.skippable import is_skippable


@forwards
class PrecisionWrapper(Precision):
    """Forwards every call to `inner`; a subclass overrides what it changes.

    Args:
        inner: the result of the wrapped implementation.
    """

    def __init__(self, inner: Precision) -> None:
        self.inner = inner

    @property
    def steps_directly(self) -> bool:
        return is_skippable(self.step) and self.inner.steps_directly

    @property
    def converts_input(self) -> bool:
        return self.inner.converts_input or not is_skippable(self.convert_input)
