"""`OptimizerWatch`: notices optimizer steps that a loop makes without the strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stratagem.errors import ConfigError, GradientError
from stratagem.strategies.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Collection

    from stratagem.collectives.base import Collectives
    from stratagem.strategies.prepared import Prepared

WAIT_S = 60.0
"""How long a rank waits for the others to step an optimizer whose parameters are in no prepared module."""


class _SetUp:
    """One prepared module and its optimizers."""

    def __init__(
        self, prepared: Prepared, given: Collection[Optimizer], replaced: Collection[ref[Any]]
    ) -> None:
        self.prepared = prepared
        # Weak references, not ids: a later object may have the id of a deleted one.
        self.given = WeakSet(given)
        self.replaced = {id(each()): each for each in replaced}
        """Parameters that the strategy has replaced, and that the user's code may still have."""

    def steps_replaced(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer steps a parameter that was replaced."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return any(
            id(parameter) in self.replaced and self.replaced[id(parameter)]() is parameter
            for parameter in parameters
        )


class OptimizerWatch:
    """Completes the gradients of optimizers that `setup` didn't get, or refuses them.

    A loop may make an optimizer after `setup(module)`, or step the optimizer that it gave to `setup` instead of the
    returned one. Gradients would then not be averaged over ranks or still be scaled, or the parameters would no
    longer be trained. The watch is a hook that torch calls before each step of each optimizer in the process.

    Gradients of parameters that are in no prepared module aren't averaged. Ranks compare them before steps 1, 2, 4
    and so on of their optimizer. Equal gradients are accepted, such as those that your loop has averaged. With
    `optimizer.rank_local = True`, each rank trains its own parameters on purpose, and nothing is compared.

    Args:
        collectives: of all ranks of the run.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._others = 0
        self._set_up: list[_SetUp] = []
        self._owners: WeakKeyDictionary[Optimizer, Callable[[], None] | None] = WeakKeyDictionary()
        self._strategy_steps = 0
        self._handle: Any = None

    def add(self, prepared: Prepared, given: Collection[Optimizer], replaced: Collection[ref[Any]]) -> None:
        """Watch optimizers of the parameters of `prepared`.

        Args:
            prepared: a module and its optimizers.
            given: the optimizers that `setup` got.
            replaced: old parameters of the module, which the strategy has replaced.
        """
        self._set_up.append(_SetUp(prepared, given, replaced))
        self._owners.clear()
        if self._handle is None:
            self._handle = register_optimizer_step_pre_hook(self._before_step)

    @contextmanager
    def strategy_steps(self) -> Iterator[None]:
        """While active, steps go through the strategy and aren't watched."""
        self._strategy_steps += 1
        try:
            yield
        finally:
            self._strategy_steps -= 1

    def close(self) -> None:
        """Stop watching."""
        if self._handle is not None:
            self._handle.remove()
        self._set_up.clear()
        self._owners.clear()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._strategy_steps:
            return
        if optimizer not in self._owners:
            self._owners[optimizer] = self._action(optimizer)
        action = self._owners[optimizer]
        if action is None:
            return
        if (len(args) > 1 and args[1] is not None) or kwargs.get("closure") is not None:
            if isinstance(action, _Comparison):
                return  # the closure hasn't computed the gradients yet
            raise ConfigError(
                f"{type(optimizer).__name__}.step got a closure, whose gradients the strategy doesn't see: pass the "
                "optimizer to setup() with its module, and step the one that setup() returns"
            )
        action()

    def _action(self, optimizer: Optimizer) -> Callable[[], None] | None:
        """Return what to call before each step of `optimizer`; None for nothing."""
        name = type(optimizer).__name__
        parameters = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for each in self._set_up:
            prepared = each.prepared
            if optimizer in each.given or any(optimizer is own for own in prepared.optimizers):
                index = next((i for i, own in enumerate(prepared.optimizers) if own is optimizer), None)
                if index is None or not prepared.steps_directly:
                    raise ConfigError(
                        f"{name} was stepped without the strategy: step the optimizer that setup() returned for it"
                    )
                return lambda: prepared.complete_gradients(index)
            if each.steps_replaced(optimizer):
                raise ConfigError(
                    f"{name} steps parameters that setup() replaced, so that it would train nothing: pass it to "
                    "setup() with the module"
                )
            if parameters & {id(parameter) for parameter in prepared.original_module.parameters()}:
                return lambda: prepared.step_late_optimizer(optimizer)
        if self._collectives.world_size == 1 or getattr(optimizer, "rank_local", False):
            return None
        self._others += 1
        return _Comparison(optimizer, self._collectives, self._others)


class _Comparison:
    """Compares gradients of an optimizer whose parameters no strategy knows across ranks. Call it before a step."""

    def __init__(self, optimizer: Optimizer, collectives: Collectives, number: int) -> None:
        self._optimizer = ref(optimizer)
        self._collectives, self._number = collectives, number
        self._steps, self._next = 0, 1

    def __call__(self) -> None:
        self._steps += 1
        if self._steps != self._next:
            return
        optimizer = self._optimizer()
        assert optimizer is not None
        self._next *= 2
        if not self._collectives.all_arrive(f"optimizer {self._number}, step {self._steps}", WAIT_S):
            self._next = 0  # only some ranks train this model, such as a probe: don't compare again
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        own = [_number(parameter.grad) for parameter in parameters]
        if any(other != own for other in self._collectives.gather_objects(own)):
            raise GradientError(
                f"{type(optimizer).__name__} steps parameters that are in no module that setup() got, and their "
                "gradients differ between ranks, so that each rank would train its own: make them parameters of the "
                "module that you give to setup(), or average their gradients over the ranks before the step "
                "(parameter.grad = runtime.collectives.all_reduce(parameter.grad)); or set "
                "optimizer.rank_local = True if each rank is meant to train its own"
            )


def _number(gradient: torch.Tensor | None) -> int | None:
    if gradient is None or type(gradient) is not torch.Tensor or gradient.layout is not torch.strided:
        return None
    return int(fingerprint([gradient], gradient.device).item())
