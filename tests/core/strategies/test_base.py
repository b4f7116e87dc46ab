"""What core asks a strategy, and a strategy that says nothing answers."""

import importlib_metadata
import pytest
import torch

from stratagem import ProcessGroupStrategy, Strategy
from stratagem.errors import BrokenPluginError


class Whitening(torch.optim.SGD):
    """Steps each row by its own mean: on other rows alone it comes to the same, on columns it doesn't."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.dim():
                    parameter.grad -= parameter.grad.mean(-1, keepdim=True)
        return super().step(closure)


def optimizer(cls=torch.optim.SGD):
    return cls([torch.nn.Parameter(torch.randn(6, 4))], lr=0.1)


@pytest.mark.parametrize("strategy", [Strategy(), ProcessGroupStrategy()])
def test_optimizers_are_tried_on_what_the_strategy_cuts(strategy) -> None:
    assert strategy.refuse_optimizer(optimizer(), 2) is None
    assert "whole" in strategy.refuse_optimizer(optimizer(Whitening), 2)


def test_only_the_strategys_own_cuts_count() -> None:
    strategy = Strategy()
    strategy.optimizer_cuts = ("rows",)
    assert strategy.refuse_optimizer(optimizer(Whitening), 2) is None
    strategy.optimizer_cuts = ("columns",)
    assert strategy.refuse_optimizer(optimizer(Whitening), 2) is not None
    assert strategy.refuse_optimizer(optimizer(Whitening), 1) is None  # a single rank has all columns


def test_where_nothing_tries_optimizers_it_says_what_to_declare(monkeypatch) -> None:
    monkeypatch.setattr(importlib_metadata, "entry_points", lambda **group: ())
    said = (
        'Strategy doesn\'t declare "whole_optimizer", and nothing is installed that tries optimizers on shards: '
        "declare it if every rank steps whole tensors, or pip install stratagem"
    )
    with pytest.raises(BrokenPluginError, match=said):
        Strategy().refuse_optimizer(optimizer(), 2)
