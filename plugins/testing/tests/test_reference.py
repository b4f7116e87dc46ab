"""The loop of plain PyTorch that strategies are compared with: order of calls, means, clipping, schedulers."""

from __future__ import annotations

from typing import Any

import torch
from stratagem_testing.reference import ReferenceLoop
from torch import Tensor, nn

X = torch.tensor([1.0, 2.0, 3.0, 5.0])


def weight() -> nn.Parameter:
    return nn.Parameter(torch.zeros(()))


def test_a_step_takes_the_mean_over_micro_batches_and_shares() -> None:
    p = weight()
    loop = ReferenceLoop([torch.optim.SGD([p], lr=1.0)])
    calls: list[object] = []

    def losses_of(batch: Tensor, index: int) -> list[Tensor]:
        calls.append(index)
        return [p * x + 1.0 for x in batch if x != 5.0]

    # Of the second micro-batch, one share has no loss: it counts as 0.
    for window in (X.view(2, 2), X.view(2, 2)[:1]):
        loop.step(
            window,
            losses_of,
            shares=2,
            before=lambda index: calls.append(f"before {index}"),
            after=lambda index: calls.append((f"after {index}", len(loop.rates))),
        )
    first = -(1 + 2 + 3) / 4
    assert float(p.detach()) == first - (1 + 2) / 2
    assert loop.losses == [1.0, 0.5, first * 1.5 + 1.0]
    assert calls == [
        "before 0",
        0,
        ("after 0", 0),
        "before 1",
        1,
        ("after 1", 1),
        "before 2",
        2,
        ("after 2", 2),
    ]
    # Gradients stay until the next step begins: an optimizer's own `zero_grad` is called once per evaluation.
    assert p.grad is not None


def test_gradients_are_clipped_and_schedulers_step() -> None:
    p, q = weight(), weight()
    limits: dict[str, Any]
    for limits, moved in (
        ({"max_norm": 1.0}, (0.6, 0.8)),
        ({"max_value": 3.5}, (3.0, 3.5)),
        ({}, (3.0, 4.0)),
    ):
        with torch.no_grad():
            p.zero_(), q.zero_()
        optimizer = torch.optim.SGD([p, q], lr=1.0)
        by_step = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
        loop = ReferenceLoop([optimizer], [(by_step, "step"), (plateau, "epoch")], **limits)
        loop.step([None], lambda batch, index: [3 * p + 4 * q])
        torch.testing.assert_close(torch.stack([-p, -q]).detach(), torch.tensor(moved))
        assert loop.rates == [[0.5]]
        loop.end_epoch([1.0, 2.0])
        assert plateau.best == 1.5
        loop.end_epoch([2.0, 2.0])
        assert optimizer.param_groups[0]["lr"] == 0.05


def test_an_optimizer_that_evaluates_again_gets_the_same_batches() -> None:
    p = nn.Parameter(torch.tensor(3.0))
    loop = ReferenceLoop([torch.optim.LBFGS([p], lr=0.5, max_iter=5)], closure=True)
    seen: list[int] = []
    before: list[int] = []

    def losses_of(batch: float, index: int) -> list[Tensor]:
        seen.append(index)
        return [(p - batch) ** 2]

    loop.step([1.0, 2.0], losses_of, before=before.append)
    assert before == [0, 1]
    assert len(seen) > 2
    assert set(seen) == {0, 1}
    # Losses are those of the first evaluation.
    assert loop.losses == [4.0, 1.0]
    assert abs(float(p.detach()) - 1.5) < 0.2
