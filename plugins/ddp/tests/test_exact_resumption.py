"""A run of four ranks that is continued in mid-epoch ends with the very bits of one that wasn't interrupted.

gloo adds up an element of a bucket in an order that depends on its place there, so buckets must be the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_ddp import DDPStrategy
from stratagem_sharded import DDPShardedStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

STEPS, SAVED_AT = 9, 4
KINDS = {"ddp": DDPStrategy, "ddp_sharded": DDPShardedStrategy}


class Crossed(stratagem.Module):
    """Uses its layers in another order than it has them, so that gradients come in another order, too.

    Buckets are arranged by the first step, and by the third, which may unfreeze a layer. All others use the layers
    the other way round.
    """

    def __init__(self, unfreezes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(7, 7) for _ in range(6))
        self.unfreezes = unfreezes
        if unfreezes:
            self.layers[2].requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        for index in (3, 0, 5, 1, 4, 2)[:: 1 if batch_idx in (0, 2) else -1]:
            x = torch.tanh(self.layers[index](x))
        return F.mse_loss(x, y)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Thaw(stratagem.Callback):
    """Unfreezes before the third step, also in a run that is continued after it; saves."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if module.unfreezes and batch_idx >= 2:
            module.layers[2].requires_grad_(True)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.path is not None and trainer.global_step == SAVED_AT:
            trainer.save_checkpoint(self.path)


def trained(folder: Path, kind: str, unfreezes: bool, save: bool, **options: Any) -> str:
    module = Crossed(unfreezes)
    generator = torch.Generator().manual_seed(5)
    samples = TensorDataset(*torch.randn(2, STEPS * 8, 7, generator=generator))
    stratagem.Trainer(
        strategy=KINDS[kind](start_method="fork", timeout_s=200, **options),
        accelerator="cpu",
        devices=4,
        max_epochs=1,
        seed=3,
        callbacks=[Thaw(folder / "saved" if save else None)],
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    ).fit(module, DataLoader(samples, 2), ckpt_path=None if save else folder / "saved")
    values = b"".join(value.numpy().tobytes() for value in module.state_dict().values())
    return hashlib.sha256(values).hexdigest()


@pytest.mark.parametrize(("kind", "unfreezes"), [("ddp", False), ("ddp", True), ("ddp_sharded", True)])
def test_every_bit_is_that_of_an_uninterrupted_run(tmp_path: Path, kind: str, unfreezes: bool) -> None:
    whole = trained(tmp_path, kind, unfreezes, save=True)
    assert trained(tmp_path, kind, unfreezes, save=False) == whole


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        {"ddp_comm_hook": "powersgd", "ddp_comm_state": {"start_powerSGD_iter": 2}},
    ],
    ids=lambda options: next(iter(options.values()) if "ddp_comm_hook" in options else iter(options)),
)
def test_whatever_reduces(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = trained(tmp_path, "ddp", True, save=True, **options)
    assert trained(tmp_path, "ddp", True, save=False, **options) == whole
