"""Replicas join and leave: another number of ranks goes on from the average, with the outer optimizer as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_diloco import DiLoCoStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

# After 6 steps the first of two fragments is on its way, the second has arrived once.
STREAMS = {"sync_every": 4, "fragments": 2, "overlap_steps": 1, "outer_grad_dtype": "int8"}


class Task(stratagem.Module):
    def __init__(self, saved: Path | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 3))
        self.saved = saved

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.saved is not None and self.trainer.global_step == 6 and not self.saved.exists():
            self.trainer.save_checkpoint(self.saved)
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def train_dataloader(self) -> Any:
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(96, 12, generator=generator)
        y = (x @ torch.randn(12, 3, generator=generator)).argmax(1)
        return DataLoader(TensorDataset(x, y), 4, shuffle=True)


def fit(tmp_path: Path, task: Task, devices: int, strategy: Any = None, **how: Any) -> None:
    ckpt_path = how.pop("ckpt_path", None)
    stratagem.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy or DiLoCoStrategy(start_method="fork", timeout_s=200, **STREAMS),
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=tmp_path / "run",
        seed=3,
        **{"max_steps": 7, **how},
    ).fit(task, ckpt_path=ckpt_path)


def kept(path: Path, beginning: str) -> dict[str, Tensor]:
    from stratagem_checkpoint import DirectoryCheckpointer

    from stratagem.collectives.local import LocalCollectives

    reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(str(path))
    found = {
        key: torch.zeros(i.shape, dtype=i.dtype)
        for key, i in reader.tensors.items()
        if key.startswith(beginning)
    }
    reader.read(found)
    return found


@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 1)])
def test_another_number_of_ranks_keeps_the_outer_state(tmp_path: Path, before: int, after: int) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    fit(tmp_path, Task(first), before)
    fit(tmp_path, Task(again), after, ckpt_path=first)
    old, new = kept(first, "diloco/shared/"), kept(again, "diloco/shared/")
    assert old.keys() == new.keys()
    assert {key.split("/")[2] for key in old} == {"outer", "momentum", "in_flight"}
    for key, value in old.items():
        assert torch.equal(new[key], value), key
    for key, value in kept(first, "model/").items():
        # The average goes on; three equal numbers' mean may be rounded.
        torch.testing.assert_close(kept(again, "model/")[key], value, atol=1e-6, rtol=0)
    assert any(float(value.abs().max()) > 1e-4 for key, value in old.items() if "momentum" in key)


def test_any_strategy_goes_on_from_the_average_and_diloco_from_any(tmp_path: Path) -> None:
    ours, theirs, back = (tmp_path / name for name in ("ours", "theirs", "back"))
    fit(tmp_path, Task(ours), 2)
    fit(tmp_path, Task(theirs), 1, "single", ckpt_path=ours)
    fit(tmp_path, Task(back), 2, ckpt_path=theirs)
    model = kept(ours, "model/")
    for path in (theirs, back):
        assert all(torch.equal(value, model[key]) for key, value in kept(path, "model/").items())
    outer = {key.removeprefix("diloco/shared/outer/"): v for key, v in kept(back, "diloco/shared/").items()}
    assert outer.keys() == {f"net.{name}" for name, _ in Task().net.named_parameters()}
    assert all(torch.equal(value, model[f"model/{key}"]) for key, value in outer.items())
