"""What `Runtime.setup` returns: drop-in module and optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from torch import nn
from torch.optim import Optimizer

from stratagem.collectives.closures import mean_closure

if TYPE_CHECKING:
    from stratagem.collectives.base import Collectives
    from stratagem.strategies import ReplicaGuard
    from stratagem.strategies.prepared import Prepared


class PreparedModule(nn.Module):
    """Calls go through the strategy and the precision; everything else is the user's module.

    `state_dict` has the plain module's names. Other attributes are looked up on the plain module.
    """

    def __init__(self, prepared: Prepared) -> None:
        super().__init__()
        self.plain = prepared.plain
        object.__setattr__(self, "prepared", prepared)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        prepared: Prepared = self.__dict__["prepared"]
        return prepared.forward(*args, **kwargs) if self.training else prepared.evaluate(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.plain.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.plain.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("plain"), name)


class PreparedOptimizer(Optimizer):
    """An optimizer whose `step` goes through the strategy and the precision.

    It shares groups and state with the optimizer it stands for, so that schedulers work on it.
    """

    def __init__(self, prepared: Prepared, index: int, guard: ReplicaGuard, data_ranks: Collectives) -> None:
        inner = prepared.optimizers[index]
        # Optimizer.__init__ would copy the groups; schedulers must change the inner ones.
        self.__dict__.update({k: v for k, v in inner.__dict__.items() if k != "step"})
        self.prepared, self.index, self.inner, self.guard = prepared, index, inner, guard
        self.data_ranks = data_ranks

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        self.prepared.step(self.index, mean_closure(closure, self.data_ranks))
        self.guard.after_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.prepared.zero_grad(self.index)

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
