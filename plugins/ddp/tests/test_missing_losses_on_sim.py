"""Ranks know which others have no loss although the device runs late, and a rank is late itself."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from stratagem_ddp import DDPStrategy
from stratagem_sim.build import is_built
from torch import nn

import stratagem

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]
STEPS, SKIPPED = 5, (1, 3)


class Skips(stratagem.Module):
    """Its gradient is 1. Skipped steps have no loss on any rank, and rank 1 comes to them half a second late."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx in SKIPPED:
            time.sleep(0.5 * self.global_rank)
            return None
        return (self.weight * batch).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.weight], lr=0.5, momentum=0.5)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(2 * STEPS, 1), 1)


def test_a_step_that_no_rank_has_a_loss_for_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAGEM_SIM_DELAY", "late")
    monkeypatch.setenv("STRATAGEM_SIM_LATE_MS", "100")
    module = Skips()
    stratagem.Trainer(
        strategy=DDPStrategy(timeout_s=60), devices=2, accelerator="sim", max_epochs=1, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    ).fit(module)  # fmt: skip
    plain = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([plain], lr=0.5, momentum=0.5)
    for _ in range(STEPS - len(SKIPPED)):
        plain.grad = torch.ones(1)
        optimizer.step()
    assert module.weight.item() == plain.item()
