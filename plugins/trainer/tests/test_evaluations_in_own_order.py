"""Evaluations by a sampler of the user's, in two processes, are those of one."""

from __future__ import annotations

import os
import random
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


class DrawnApart(Sampler[int]):
    """Each process draws by a generator of its own, which is never seeded."""

    def __init__(self) -> None:
        self.random = None

    def __len__(self) -> int:
        return 16

    def __iter__(self) -> Any:
        self.random = self.random or random.Random(os.getpid())
        return iter(self.random.sample(range(16), 16))


class Net(stratagem.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("count", float(len(batch[0])), reduce_fx="sum")
        self.log("mean", batch[0].mean())

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return batch[0].flatten()


def evaluated(strategy: str, devices: int, run_dir: Any, sampler: Any = None, **how: Any) -> tuple[Any, Any]:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = stratagem.Trainer(
        strategy=strategy, accelerator="cpu", devices=devices, run_dir=run_dir, **quiet, **how
    )
    loader = DataLoader(DATA, 2, sampler=sampler or Chosen())
    predicted = [part.tolist() for part in trainer.predict(Net(), loader)]
    return predicted, trainer.validate(Net(), loader)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_evaluate_what_one_does(tmp_path: Any, strategy: str, recwarn: Any) -> None:
    alone = evaluated("single", 1, tmp_path / "one")
    assert alone[0] == [[9, 3], [5, 1], [0, 2], [8]]
    assert alone[1] == [{"count": 7, "mean": 4}]
    assert evaluated(strategy, 2, tmp_path / "two") == alone
    assert not [each for each in recwarn if "its own sampler" in str(each.message)]


def test_each_rank_reads_all_where_nothing_is_to_be_shared(tmp_path: Any) -> None:
    predicted, values = evaluated("ddp", 2, tmp_path, use_distributed_sampler=False)
    assert predicted == [[9, 3], [5, 1], [0, 2], [8]] * 2
    assert values == [{"count": 14, "mean": 4}]


def test_ranks_that_draw_otherwise_read_shares_of_one_draw(tmp_path: Any) -> None:
    predicted, values = evaluated("ddp", 2, tmp_path, DrawnApart())
    assert sorted(value for part in predicted for value in part) == list(range(16))
    assert values == [{"count": 16, "mean": 7.5}]


def test_side_by_side_ranks_read_all_of_each(tmp_path: Any) -> None:
    """Shares of unequal lengths would be begun again unequally often."""

    class Pairs(Net):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("count", float(len(batch["a"][0])), reduce_fx="sum")

    loaders = {"a": DataLoader(DATA, 2, sampler=Chosen()), "b": DataLoader(DATA, 2)}
    combined = stratagem.CombinedLoader(loaders, "max_size_cycle")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = stratagem.Trainer(strategy="ddp", accelerator="cpu", devices=2, run_dir=tmp_path, **quiet)
    values = trainer.validate(Pairs(), combined)
    assert values == [{"count": 14}]
