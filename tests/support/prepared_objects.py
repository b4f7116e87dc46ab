"""Small prepared modules and optimizers, as `Runtime.setup` wraps them, without a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from stratagem.collectives.local import LocalCollectives
from stratagem.plugin.requests import LoopPlan, SetupRequest
from stratagem.precision.base import Precision
from stratagem.runtime.loop import optimizers_for, wrap
from stratagem.runtime.optimizer_watch import OptimizerWatch
from stratagem.runtime.session import Session
from stratagem.strategies.prepared import Prepared

CPU = torch.device("cpu")
ALONE = LocalCollectives(CPU)
PER_PARAMETER = (lambda net: SGD([net.weight], lr=0.5), lambda net: SGD([net.bias], lr=0.5))


class Net(nn.Linear):
    hint = "an attribute"

    def __init__(self) -> None:
        super().__init__(2, 1)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)


class RecordingPrepared(Prepared):
    """Notes what is called of it."""

    calls: list[Any]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("forward")
        return super().forward(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("evaluate")
        return self.module(*args, **kwargs)

    def step(self, index: int, closure: Any = None) -> bool:
        self.calls.append(("step", index))
        return super().step(index, closure)

    def zero_grad(self, index: int) -> None:
        self.calls.append(("zero_grad", index))
        super().zero_grad(index)


class Guard:
    def __init__(self) -> None:
        self.steps = 0

    def before_step(self, index: int) -> None:
        pass

    def after_step(self) -> None:
        self.steps += 1


class LiveSession(Session):
    """A session without a run: of what it opens it has the collectives alone."""

    def __init__(self, collectives: Any, steps_alone: bool) -> None:
        self.collectives, self.its_guard = collectives, Guard()
        self.checkpointer: Any = SimpleNamespace(is_async=False, poll=lambda: None)
        self._steps_alone, self._watch = steps_alone, OptimizerWatch(collectives)
        self._retrials = {}

    @property
    def steps_alone(self) -> bool:
        return self._steps_alone

    def guard(self, prepared: Any) -> Any:
        return self.its_guard


def prepare(cls: Any = Prepared, *makers: Any) -> Any:
    net = Net()
    makers = makers or (lambda net: SGD(net.parameters(), lr=0.5),)
    make = optimizers_for(net, [each(net) for each in makers])
    return cls(SetupRequest(net, net, make, (CPU,), ALONE, Precision(), LoopPlan()))


def session(is_active: bool = False, collectives: Any = ALONE) -> Any:
    return LiveSession(collectives, steps_alone=not is_active and collectives.world_size == 1)


def wrapped(prepared: Any, made: Any = None, index: int = 0) -> Any:
    made = made or session(is_active=True)
    return wrap(prepared, prepared.original_module, made)[1][index]
