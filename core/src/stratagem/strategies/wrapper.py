"""`PreparedWrapper`: the base class for results of wrappers of the `setup` hook."""

from __future__ import annotations

from typing import Any

from stratagem.plugin.forwarding import forwards
from stratagem.precision.skippable import is_skippable
from stratagem.strategies.prepared import Prepared


@forwards
class PreparedWrapper(Prepared):
    """Forwards every call to `inner`, and reads every attribute from it; a subclass overrides what it changes.

    Calls of `inner` to its own methods don't reach the wrapper, such as to `backward` in its `forward_backward`.
    Override the methods that the loop calls: `forward_backward` and `step`, or `forward`, `backward` and `clip` for
    your own training loop.

    To replace the module that a strategy wraps, derive from the strategy instead and override its method, such as
    `configure_ddp(self, module, device)`. In this wrapper it is too late: `inner.module` exists and its hooks are
    set.

    Args:
        inner: the result of the wrapped implementation.
    """

    def __init__(self, inner: Prepared) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of `inner`, such as `optimizers`, as it is now."""
        if name == "inner":  # not set yet while a pickle or a copy is made
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
