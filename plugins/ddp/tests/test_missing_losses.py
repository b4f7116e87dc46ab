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


@pytest.mark.parametrize("skipped", [[[], []], [[1, 3], [1, 3]], [[1, 2], [1, 3]], [[0], [4]]], ids=str)
def test_a_window_counts_by_the_ranks_that_have_a_loss(skipped: list[list[int]]) -> None:
    module = Skips(skipped)
    trainer = stratagem.Trainer(
        strategy=DDPStrategy(start_method="fork", timeout_s=200),
        devices=2,
        accelerator="cpu",
        max_epochs=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    # Ranks take turns: rank 0 reads 1, 3, 5, …, and rank 1 reads 2, 4, 6, ….
    samples = [torch.tensor([float(value)]) for value in range(1, 2 * STEPS + 1)]
    trainer.fit(module, DataLoader(samples, 1))
    assert float(module.weight.detach()) == pytest.approx(by_hand(skipped))
