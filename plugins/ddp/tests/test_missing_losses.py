"""Windows without a loss: on all ranks they change nothing, on one rank they count as gradients of zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stratagem_ddp import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader

import stratagem

STEPS, RATE = 5, 0.5
WARM_UP, PERIOD = 2, 2


class Skips(stratagem.Module):
    """Its gradient is the batch; steps that `skipped` names per rank return None."""

    def __init__(self, skipped: list[list[int]]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.skipped = skipped

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx in self.skipped[self.global_rank]:
            return None
        return (self.weight * batch).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.weight], lr=RATE, momentum=0.5)


def by_hand(skipped: list[list[int]]) -> float:
    """Of steps without any loss, torch's SGD leaves out the parameter, which has no gradient: momentum rests."""
    weight = momentum = 0.0
    for step in range(STEPS):
        values = [0.0 if step in skipped[rank] else float(2 * step + rank + 1) for rank in range(2)]
        if all(step in each for each in skipped):
            continue
        momentum = 0.5 * momentum + sum(values) / 2
        weight -= RATE * momentum
    return weight


def locally(skipped: list[list[int]], size: int = 1) -> list[float]:
    """As `by_hand` for the warm-up; then each group of `size` ranks steps by the mean of its losses.

    Weights are averaged over all ranks now and then.
    """
    ranks = range(len(skipped))
    weights, momenta = [0.0 for _ in ranks], [0.0 for _ in ranks]
    for step in range(STEPS):
        values = [None if step in skipped[rank] else float(len(skipped) * step + rank + 1) for rank in ranks]
        count = len(skipped) if step < WARM_UP else size
        for first in range(0, len(skipped), count):
            group = values[first : first + count]
            if any(value is not None for value in group):
                values[first : first + count] = [sum(value or 0.0 for value in group) / count] * count
        for rank, value in enumerate(values):
            if value is not None:
                momenta[rank] = 0.5 * momenta[rank] + value
                weights[rank] -= RATE * momenta[rank]
        if step >= WARM_UP and (step - WARM_UP) % PERIOD == 0:
            weights = [sum(weights) / len(weights) for _ in ranks]
    return weights


@pytest.mark.parametrize("skipped", [[[], []], [[1, 3], [1, 4]], [[0, 4], [0, 4]]], ids=str)
def test_under_local_sgd_a_rank_without_a_loss_rests_alone(skipped: list[list[int]]) -> None:
    module = fitted(
        skipped,
        ddp_comm_hook="post_local_sgd",
        ddp_comm_state={"start_localSGD_iter": WARM_UP},
        model_averaging_period=PERIOD,
    )
    # The result is the mean of what the ranks have.
    assert float(module.weight.detach()) == pytest.approx(sum(locally(skipped)) / 2)


def test_under_local_sgd_a_group_without_a_loss_rests_alone() -> None:
    """Step 2: none of the first group has a loss. Step 3: one of each has one. Step 4: none of the second has one."""
    skipped = [[2], [2, 3], [3, 4], [4]]
    module = fitted(
        skipped,
        ddp_comm_hook="post_local_sgd",
        ddp_comm_state={"start_localSGD_iter": WARM_UP, "subgroup_size": 2},
        model_averaging_period=PERIOD,
    )
    assert float(module.weight.detach()) == pytest.approx(sum(locally(skipped, size=2)) / 4)


@pytest.mark.parametrize("skipped", [[[], []], [[1, 3], [1, 3]], [[1, 2], [1, 3]], [[0], [4]]], ids=str)
def test_a_window_counts_by_the_ranks_that_have_a_loss(skipped: list[list[int]]) -> None:
    assert float(fitted(skipped).weight.detach()) == pytest.approx(by_hand(skipped))


def fitted(skipped: list[list[int]], accumulate: int = 1, count: int = STEPS, **options: Any) -> Skips:
    """Train on `count` batches per rank: of two, rank 0 reads 1, 3, 5, …, and rank 1 reads 2, 4, 6, …."""
    module, devices = Skips(skipped), len(skipped)
    samples = [torch.tensor([float(value)]) for value in range(1, devices * count + 1)]
    train(module, samples, accumulate, devices, **options)
    return module


def by_hand_accumulated(skipped: list[list[int]], count: int) -> float:
    """As `by_hand`, where two micro-batches make a step."""
    weight = momentum = 0.0
    for first in range(0, count, 2):
        window = range(first, first + 2)
        values = [
            float(2 * step + rank + 1) for rank in range(2) for step in window if step not in skipped[rank]
        ]
        if values:
            momentum = 0.5 * momentum + sum(values) / 4
            weight -= RATE * momentum
    return weight


@pytest.mark.parametrize(
    "skipped",
    [
        [[], []],
        [[1], [1]],  # the last of a window, which had a loss before
        [[0], [1]],
        [[0, 1], []],
        [[0, 1, 3], [1, 2, 3]],
        [[2, 3], [2, 3]],  # no rank has a loss in the second window
        [[1, 2, 3], [1, 2, 3]],  # nor one that the first window had
    ],
    ids=str,
)
def test_a_window_of_several_micro_batches(skipped: list[list[int]]) -> None:
    module = fitted(skipped, accumulate=2, count=6)
    assert float(module.weight.detach()) == pytest.approx(by_hand_accumulated(skipped, 6))


POWER_SGD = {
    "ddp_comm_hook": "powersgd",
    "ddp_comm_state": {"start_powerSGD_iter": 2, "matrix_approximation_rank": 1, "min_compression_rate": 0.1},
}


class Matrix(stratagem.Module):
    """Its gradient is compressed; `skipped` steps have no loss on any rank."""

    def __init__(self, skipped: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 6, bias=False)
        self.skipped = skipped

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(int(batch)))
        return None if batch_idx in self.skipped else (self.layer(x) - x.flip(1)).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5)


def test_powersgd_remembers_nothing_of_a_step_without_a_loss() -> None:
    """A step that no rank has a loss for ends as if it had not been."""
    batches = [torch.tensor([value]) for value in range(14)]
    whole, skipping = Matrix(()), Matrix((4,))
    # Steps 0 to 3, then 5 and 6: rank 0 reads even batches, and rank 1 odd ones.
    train(whole, [*batches[:8], *batches[10:]], **POWER_SGD)
    train(skipping, batches, **POWER_SGD)
    torch.testing.assert_close(skipping.layer.weight, whole.layer.weight, rtol=0, atol=1e-6)


def train(
    module: Any, samples: list[torch.Tensor], accumulate: int = 1, devices: int = 2, **options: Any
) -> None:
    trainer = stratagem.Trainer(
        strategy=DDPStrategy(start_method="fork", timeout_s=200, **options),
        devices=devices,
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(module, DataLoader(samples, 1))
