"""`PreparedWrapper`: the base of what a wrapper of the hook `setup` returns."""

from __future__ import annotations

from typing import Any

from stratagem.plugin.forwarding import forwards
from stratagem.precision.skippable import is_skippable
from stratagem.strategies.prepared import Prepared


@forwards
class PreparedWrapper(Prepared):
    """Forwards every call to `inner`, and reads every attribute from it; a subclass overrides what it changes.

    Calls that `inner` makes on itself, as of `backward` in its `forward_backward`, stay its own. Override the method
    that the loop calls: `forward_backward` and `step`, or `forward`, `backward` and `clip` for own loops. To replace
    the module that a strategy wraps, derive from the strategy instead, and override its method for that, as
    `configure_ddp(self, module, device)`: by the time of this wrapper `inner.module` is made and its hooks are set.

    Args:
        inner: what the wrapped implementation answered with.
    """

    def __init__(self, inner: Prepared) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        """Attributes, as `optimizers`: those of `inner`, as they are now."""
        if name == "inner":  # while it is made from a pickle or a copy
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def steps_directly(self) -> bool:
        return is_skippable(self.step) and self.inner.steps_directly

    @property
    def forwards_directly(self) -> bool:
        own = is_skippable(self.forward) and is_skippable(self.evaluate)
        return own and self.inner.forwards_directly

    @property
    def backwards_directly(self) -> bool:
        return is_skippable(self.backward) and self.inner.backwards_directly
