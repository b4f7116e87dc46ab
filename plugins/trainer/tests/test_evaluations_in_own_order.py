"""Evaluations by a sampler of the user's, in two processes, are those of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

import stratagem

DATA = TensorDataset(torch.arange(16.0).view(16, 1))


class Chosen(Sampler[int]):
    order = (9, 3, 5, 1, 0, 2, 8)

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Any:
        return iter(self.order)


class Net(stratagem.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("count", float(len(batch[0])), reduce_fx="sum")
        self.log("mean", batch[0].mean())

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return batch[0].flatten()


def evaluated(strategy: str, devices: int, run_dir: Any, **how: Any) -> tuple[Any, Any]:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = stratagem.Trainer(
        strategy=strategy, accelerator="cpu", devices=devices, run_dir=run_dir, **quiet, **how
    )
    loader = DataLoader(DATA, 2, sampler=Chosen())
    predicted = [part.tolist() for part in trainer.predict(Net(), loader)]
    return predicted, trainer.validate(Net(), loader)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_evaluate_what_one_does(tmp_path: Any, strategy: str, recwarn: Any) -> None:
    alone = evaluated("single", 1, tmp_path / "one")
    assert alone[0] == [[9, 3], [5, 1], [0, 2], [8]]
    assert alone[1] == [{"count": 7, "mean": 4}]
    assert evaluated(strategy, 2, tmp_path / "two") == alone
    assert not [each for each in recwarn if "sampler of its own" in str(each.message)]


def test_each_rank_reads_all_where_nothing_is_to_be_shared(tmp_path: Any) -> None:
    predicted, values = evaluated("ddp", 2, tmp_path, use_distributed_sampler=False)
    assert predicted == [[9, 3], [5, 1], [0, 2], [8]] * 2
    assert values == [{"count": 14, "mean": 4}]
