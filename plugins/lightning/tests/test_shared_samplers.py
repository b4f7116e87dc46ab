"""Programs of Lightning with samplers of their own, in two processes."""

from __future__ import annotations

import os
import random
from typing import Any

import stratagem_lightning as L
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

DATA = TensorDataset(torch.arange(16.0).view(16, 1))


class DrawnApart:
    """Each process draws by a generator of its own, which is never seeded."""

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        return iter(random.Random(os.getpid()).sample(range(8), 8))


class Net(L.LightningModule):
    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.layer, self.stop_at = torch.nn.Linear(1, 1), stop_at
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append([int(value) for value in self.all_gather(batch[0]).flatten()])
        return self.layer(batch[0]).mean()

    def on_train_end(self) -> None:
        if self.global_rank == 0:
            torch.save(self.seen, "seen.pt")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def seen_by(devices: int, batch_size: int, sampler: Any, **settings: Any) -> list[list[int]]:
    """What is read in each step, over all ranks."""
    ckpt_path = settings.pop("ckpt_path", None)
    L.seed_everything(3)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp",
        **{**quiet, "enable_checkpointing": False, **settings},
    )
    trainer.fit(Net(), DataLoader(DATA, batch_size, sampler=sampler), ckpt_path=ckpt_path)
    return torch.load("seen.pt")


def test_ranks_of_a_lightning_program_share_what_a_sampler_draws(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    two = seen_by(2, 2, SubsetRandomSampler(range(8)), max_epochs=2)
    assert [sorted(two[2 * epoch] + two[2 * epoch + 1]) for epoch in range(2)] == [list(range(8))] * 2
    assert two[:2] != two[2:]
    # Going on in mid-epoch reads what is left.
    callback = L.pytorch.callbacks.ModelCheckpoint(
        "saved", every_n_train_steps=3, save_top_k=-1, filename="{step}"
    )
    saved = {"callbacks": callback, "enable_checkpointing": True}
    assert seen_by(2, 2, SubsetRandomSampler(range(8)), max_steps=3, **saved) == two[:3]
    (path,) = [each for each in (tmp_path / "saved").iterdir() if each.name.startswith("step=3")]
    assert seen_by(2, 2, SubsetRandomSampler(range(8)), max_epochs=2, ckpt_path=str(path)) == two[3:]


def test_ranks_that_draw_otherwise_train_on_shares_of_one_draw(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (first, second) = seen_by(2, 2, DrawnApart(), max_epochs=1)
    assert sorted(first + second) == list(range(8))
