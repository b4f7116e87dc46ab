"""What `Runtime.setup` returns: drop-in module and optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from torch import nn
from torch.optim import Optimizer

from stratagem.collectives.closures import mean_closure
from stratagem.errors import ConfigError
from stratagem.strategies.stepping import drop_gradients

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives
    from stratagem.runtime.session import Session
    from stratagem.strategies import ReplicaGuard
    from stratagem.strategies.prepared import Prepared


class PreparedModule(nn.Module):
    """Calls go through the strategy and the precision; everything else is the user's module.

    `state_dict` has the user's module's names. Other attributes are looked up on that module.
    """

    def __init__(self, prepared: Prepared) -> None:
        super().__init__()
        self.original_module = prepared.original_module
        object.__setattr__(self, "prepared", prepared)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        prepared: Prepared = self.__dict__["prepared"]
        return prepared.forward(*args, **kwargs) if self.training else prepared.evaluate(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.original_module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.original_module.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("original_module"), name)


class PreparedOptimizer(Optimizer):
    """An optimizer whose `step` goes through the strategy and the precision.

    It shares groups and state with the optimizer it stands for, so that schedulers work on it.
    """

    def __init__(
        self,
        prepared: Prepared,
        index: int,
        guard: ReplicaGuard,
        data_ranks: Collectives,
        poll: Callable[[], None],
    ) -> None:
        inner = prepared.optimizers[index]
        # Optimizer.__init__ would copy the groups; schedulers must change the inner ones.
        self.__dict__.update({k: v for k, v in inner.__dict__.items() if k != "step"})
        self.prepared, self.index, self.inner, self.guard = prepared, index, inner, guard
        self.data_ranks, self.poll = data_ranks, poll

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        self.prepared.step(self.index, mean_closure(closure, self.data_ranks))
        self.guard.after_step()
        self.poll()

    def zero_grad(self, set_to_none: bool = True) -> None:
        drop_gradients(self.prepared, self.index, set_to_none)

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state


def optimizers_for(
    module: nn.Module, optimizers: Sequence[Optimizer | Callable[[nn.Module], Optimizer]]
) -> Callable[[], list[Optimizer]]:
    """Return a factory that a strategy calls once parameters are in their final place.

    Given optimizers are pointed at the parameters that then have the names of those they were made
    with; functions are called with the module.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}

    def make() -> list[Optimizer]:
        current = dict(module.named_parameters())
        made = []
        for optimizer in optimizers:
            if not isinstance(optimizer, Optimizer):
                made.append(optimizer(module))
                continue
            for group in optimizer.param_groups:
                group["params"] = [current[names[id(p)]] if id(p) in names else p for p in group["params"]]
            made.append(optimizer)
        return made

    return make


def wrap(prepared: Prepared, session: Session) -> tuple[nn.Module, list[Optimizer]]:
    """Return what a loop of the user's own calls for what was prepared; the objects themselves, where they can."""
    is_module = prepared.module is prepared.original_module and prepared.forwards_directly
    wrapped = prepared.original_module if is_module else PreparedModule(prepared)
    guard, data_ranks, checkpointer = session.guard(prepared), session.collectives.data, session.checkpointer
    needs_step = guard.is_active or checkpointer.is_async or data_ranks.world_size > 1
    if prepared.steps_directly and not needs_step:
        return wrapped, list(prepared.optimizers)
    return wrapped, [
        PreparedOptimizer(prepared, index, guard, data_ranks, checkpointer.poll)
        for index in range(len(prepared.optimizers))
    ]


def prepared_of(everything: Sequence[Prepared], module: nn.Module | None) -> Prepared:
    """Return what of `everything` is of `module`, as it was given or is wrapped; the only one for None.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if module is None and len(everything) == 1:
        return everything[0]
    wrapped = module.prepared if isinstance(module, PreparedModule) else None
    for prepared in everything:
        if prepared is wrapped or prepared.original_module is module:
            return prepared
    raise ConfigError(
        f"{len(everything)} modules were set up: pass module=, one that setup() returned"
        if everything
        else "no module was set up: call setup() first"
    )


def is_of(prepared: Prepared, value: Any) -> bool:
    """Whether a value is the module or an optimizer of `prepared`, as it was given or is wrapped."""
    if isinstance(value, (PreparedModule, PreparedOptimizer)):
        return bool(value.prepared is prepared)
    return value is prepared.original_module or any(value is each for each in prepared.optimizers)


def prepared_of_optimizer(everything: Sequence[Prepared], optimizer: Optimizer) -> tuple[Prepared, int]:
    """Return what of `everything` has `optimizer`, and its index there.

    Raises:
        ConfigError: none has it.
    """
    if isinstance(optimizer, PreparedOptimizer):
        return optimizer.prepared, optimizer.index
    for prepared in everything:
        for index, candidate in enumerate(prepared.optimizers):
            if candidate is optimizer:
                return prepared, index
    raise ConfigError("clip got an optimizer that wasn't set up: pass one that setup() returned")


def only_prepared(everything: Sequence[Prepared]) -> Prepared:
    """Return the one of `everything`.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if len(everything) != 1:
        raise ConfigError(
            f"save and load take the one module that was set up, and there are {len(everything)}: put several into "
            "one nn.ModuleDict"
        )
    return everything[0]
