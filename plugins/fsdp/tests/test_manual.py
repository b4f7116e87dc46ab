"""Manual optimization: parts with an optimizer each are sharded by themselves and called in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line, TwoPlayers
from stratagem_fsdp import FSDPStrategy
from torch import nn
from torch.nn import functional as F

import stratagem


class Adversaries(Line):
    """As in a GAN: one part is called twice for one loss; beside them a parameter of the module's own."""

    automatic_optimization = False

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.generator = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))
        self.critics = nn.ModuleList([nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))])
        self.shift = nn.Parameter(torch.zeros(4))
        self.layer = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.generator(x) + self.shift

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real = batch[0]
        creating, judging = self.optimizers()
        judging.zero_grad()
        judged = self.critics[0](real) - self.critics[0](self(real).detach())
        self.manual_backward(F.softplus(-judged).mean())
        judging.clip(max_norm=0.5)
        judging.step()
        with self.toggle_grad(creating):
            creating.zero_grad()
            # Twice: gradients add up over backwards.
            self.manual_backward(0.5 * F.softplus(-self.critics[0](self(real))).mean())
            self.manual_backward(0.5 * F.softplus(-self.critics[0](self(real))).mean())
            creating.clip(max_norm=0.1)
            creating.step()
        self.log("judged", judged.mean())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("judged", self.critics[0](self(batch[0])).mean())

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.Adam([*self.generator.parameters(), self.shift], lr=0.02),
            torch.optim.Adam(self.critics.parameters(), lr=0.02),
        ]


def fit(module: stratagem.Module, devices: int, strategy: Any, tmp_path: Path) -> dict[str, torch.Tensor]:
    trainer = stratagem.Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=devices,
        seed=7,
        max_epochs=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        run_dir=tmp_path,
    )
    trainer.fit(module)
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("cls", [Adversaries, TwoPlayers])
def test_equals_one_process(tmp_path: Path, cls: Any, processes: int) -> None:
    one, several = cls(), cls()
    one.batch_size, several.batch_size = 8, 8 // processes
    expected = fit(one, 1, "single", tmp_path)
    ours = fit(several, processes, FSDPStrategy(start_method="fork"), tmp_path)
    for name, value in ours.items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=0, msg=name)
