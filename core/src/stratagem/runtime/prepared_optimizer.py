"""`PreparedOptimizer`: the optimizer that `Runtime.setup` returns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from stratagem.errors import ConfigError
from stratagem.strategies.stepping import drop_gradients

if TYPE_CHECKING:
    from stratagem.runtime.accumulation import Accumulation
    from stratagem.runtime.session import Session
    from stratagem.strategies.prepared import Prepared


class PreparedOptimizer(Optimizer):
    """The user's optimizer, whose `step` goes through the strategy and the precision.

    Both objects share one `__dict__`, so that groups, defaults, hooks and all other attributes stay the same in both,
    even if they are replaced or loaded. Attributes are set on the user's optimizer, and methods of its class are
    called on it. The strategy decides what `state` shows.

    Args:
        prepared: the prepared module that the optimizer belongs to.
        index: of the optimizer.
        session: the live run.
        accumulation: holds steps back within `Runtime.accumulate`; None if every step takes effect.
    """

    # Stored outside of `__dict__`, which belongs to the user's optimizer.
    __slots__ = ("_accumulation", "_patched_step", "_session", "index", "inner", "prepared")

    def __init__(
        self, prepared: Prepared, index: int, session: Session, accumulation: Accumulation | None = None
    ) -> None:
        # Optimizer.__init__ would create new groups and state.
        self.prepared, self.index, self.inner = prepared, index, prepared.optimizers[index]
        self._session, self._accumulation = session, accumulation
        self._patched_step: Callable[..., Any] | None = None
        self.__dict__ = self.inner.__dict__

    @property
    def step(self) -> Callable[..., Any]:
        """Step through the strategy; collective.

        Args:
            closure: evaluates the loss and runs backward. The optimizer gets the mean over ranks of what it returns.

        Returns:
            The loss of the closure's first evaluation, as the mean over ranks. None without a closure, and if
            `Runtime.accumulate` holds the step back.
        """
        patched = self._patched_step
        return MethodType(_step, self) if patched is None else patched

    @step.setter
    def step(self, value: Callable[..., Any]) -> None:
        # A scheduler replaces `step` of the object that it gets. In the shared `__dict__`, that would replace `step`
        # of the user's optimizer, too, which this object calls.
        self._patched_step = value

    @property
    def state(self) -> Any:
        """The states by parameter: the optimizer's own, unless each rank has only states of its shards."""
        return self.prepared.optimizer_state(self.index)

    @state.setter
    def state(self, value: Any) -> None:
        self.inner.state = value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__dict__" or hasattr(PreparedOptimizer, name):
            super().__setattr__(name, value)
        else:
            setattr(self.inner, name, value)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._accumulation is None or self._accumulation.drops(self.inner):
            drop_gradients(self.prepared, self.index, set_to_none)
            if self._accumulation is not None:
                self._accumulation.note_drop(self.inner)

    def state_dict(self) -> Any:
        return self.prepared.optimizer_state_dict(self.index)

    def load_state_dict(self, state_dict: Any) -> None:
        self.prepared.load_optimizer_state_dict(self.index, state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.inner.add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        if name in PreparedOptimizer.__slots__:  # not set yet while a pickle or a copy is made
            raise AttributeError(name)
        value = getattr(self.inner, name)
        return self.prepared.optimizer_method(self.index, value) if isinstance(value, MethodType) else value

    def __repr__(self) -> str:
        return repr(self.inner)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.inner, memo)

    def __reduce__(self) -> Any:
        return self.inner.__reduce_ex__(2)


def _step(self: PreparedOptimizer, closure: Callable[[], Any] | None = None, **further: Any) -> Any:
    if further:
        raise ConfigError(
            f"{type(self.inner).__name__}.step got {', '.join(further)}, and a strategy only calls step(closure): "
            "make it an attribute of the optimizer, or a setting of its groups"
        )
    if self._accumulation is not None and self._accumulation.is_within:
        if closure is not None:
            raise ConfigError(
                "step got a closure within accumulate, which holds steps back: leave accumulate out, and take all "
                "micro-batches of the step backward in the closure, each loss divided by their number"
            )
        if not self._accumulation.steps(self.inner):
            return None
    _, loss = self._session.step(self.prepared, self.index, closure)
    self._session.guard(self.prepared).after_step()
    self._session.checkpointer.poll()
    return loss
