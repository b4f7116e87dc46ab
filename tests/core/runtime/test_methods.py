"""Methods that a loop of one's own calls of what it has set up."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from stratagem.errors import ConfigError
from stratagem.runtime.loop import PreparedModule
from stratagem.runtime.methods import MethodModule


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.criterion = nn.Linear(2, 1), nn.MSELoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def loss(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self(x).mean() * scale

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def error(self, x: torch.Tensor) -> torch.Tensor:
        return self.criterion(x, self.size() + torch.zeros_like(x))

    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


class Strategy:
    """Notes what goes through it."""

    def __init__(self, net: Net, methods: tuple[str, ...]) -> None:
        self.original_module = net
        self.module = MethodModule(net, methods) if methods else net
        self.seen: list[Any] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(("forward", args[0] if isinstance(args[0], str) else None))
        return self.module(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(("evaluate", args[0] if isinstance(args[0], str) else None))
        return self.module(*args, **kwargs)


def wrapped(*methods: str) -> tuple[Any, Strategy, Net]:
    net = Net()
    strategy = Strategy(net, methods)
    return PreparedModule(strategy, methods), strategy, net  # type: ignore[arg-type]  # a test double


X = torch.ones(3, 2)


def test_named_methods_go_through_the_strategy_as_the_module_does() -> None:
    module, strategy, net = wrapped("loss")
    assert module.loss(X, scale=2.0) == net.loss(X, scale=2.0)
    assert torch.equal(module(X), net(X))
    module.eval()
    module.loss(X)
    module(X)
    assert strategy.seen == [
        ("forward", "loss"),
        ("forward", "forward"),
        ("evaluate", "loss"),
        ("evaluate", "forward"),
    ]
    assert list(inspect.signature(module.loss).parameters) == ["x", "scale"]


@pytest.mark.parametrize("methods", [(), ("loss",)])
@pytest.mark.parametrize("name", ["encode", "forward_twice"])
def test_others_may_call_no_layers(methods: tuple[str, ...], name: str) -> None:
    module, _, net = wrapped(*methods)
    type(net).forward_twice = lambda self, x: self(x) + self(x)  # type: ignore[attr-defined]  # a user's method
    with pytest.raises(
        ConfigError, match=rf"calls layers, .* forward_methods=\['{name}'\], or call the module itself"
    ):
        getattr(module, name)(X)
    # What was refused leaves nothing behind.
    assert net.encode(X).shape == (3, 1)


def test_others_may_do_everything_else() -> None:
    module, strategy, net = wrapped("loss")
    other = nn.Linear(2, 1)
    net.run = lambda: other(X)  # type: ignore[assignment]  # replaced on the instance
    assert module.size() == 3
    assert module.error(X) == net.error(X)
    assert module.run().shape == (3, 1)
    assert module.layer is net.layer
    assert strategy.seen == []


def test_the_advice_is_the_wrappers_own() -> None:
    net = Net()
    strategy: Any = SimpleNamespace(original_module=net)
    module: Any = PreparedModule(strategy, (), "mark {!r}")
    with pytest.raises(ConfigError, match=r"Net.encode calls layers, .* wouldn't see: mark 'encode'$"):
        module.encode(X)


@pytest.mark.parametrize("methods", ["loss", ["loss", "nothing"], ["layers"]])
def test_what_names_no_method_is_refused(methods: Any) -> None:
    with pytest.raises(ConfigError, match="isn't a list of names of methods of Net"):
        MethodModule(Net(), methods)
