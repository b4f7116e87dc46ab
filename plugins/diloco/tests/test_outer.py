"""Which parts of a model are sent, and when."""

from __future__ import annotations

import pytest
import torch
from stratagem_diloco.outer import OuterOptimizer, OuterSettings, fragments_of


def test_fragments_are_of_neighbours_and_about_equal() -> None:
    named = {str(index): torch.zeros(size) for index, size in enumerate((10, 10, 30, 10, 20, 20, 20))}
    parts = fragments_of(named, 3)
    assert [name for part in parts for name in part] == list(named)
    assert [sum(named[name].numel() for name in part) for part in parts] == [50, 30, 40]


def test_fragments_are_due_evenly_and_once_in_a_round() -> None:
    settings = OuterSettings(sync_every=10, fragments=3)
    due = [(step, p) for step in range(1, 21) for p in range(3) if settings.due(p, step)]
    assert due == [(3, 0), (6, 1), (10, 2), (13, 0), (16, 1), (20, 2)]


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.5, False), (0.0, True)])
def test_steps_as_sgd_of_torch(momentum: float, nesterov: bool) -> None:
    theirs = torch.nn.Parameter(torch.randn(5))
    sgd = torch.optim.SGD([theirs], lr=0.7, momentum=momentum, nesterov=nesterov and momentum > 0)
    ours = OuterOptimizer(OuterSettings(momentum=momentum, nesterov=nesterov), {"p": theirs})
    for _ in range(4):
        theirs.grad = torch.randn(5)
        sgd.step()
        ours.step(["p"], theirs.grad, set())
    torch.testing.assert_close(ours.parameters["p"], theirs.detach())
