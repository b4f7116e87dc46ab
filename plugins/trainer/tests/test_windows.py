"""Windows of loaders that don't say, or say wrongly, how many batches they have, against plain loops."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import train
from small import Closure, Line, samples
from torch.nn import functional as F
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import ConfigError, DataError


class Stream:
    """Batches that are only known as they come."""

    def __init__(self, count: int) -> None:
        x = samples().tensors[0]
        self.batches = [(x[i : i + 4], x[i : i + 4].sum(1, keepdim=True)) for i in range(0, 4 * count, 4)]

    def __iter__(self) -> Any:
        return iter(self.batches)


class Claims(Stream):
    """Says that it has `folder_lock` batches."""

    def __init__(self, count: int, folder_lock: int) -> None:
        super().__init__(count)
        self.folder_lock = folder_lock

    def __len__(self) -> int:
        return self.folder_lock


class Plain(Line):
    """The loader is passed to fit."""

    def val_dataloader(self) -> Any:
        return None


def by_hand(module: Any, windows: list[list[Any]], epochs: int) -> None:
    optimizer = module.configure_optimizers()
    for _ in range(epochs):
        for window in windows:
            optimizer.zero_grad()
            for x, y in window:
                (F.mse_loss(module(x), y) / len(window)).backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("loader", "limit", "expected"),
    [
        pytest.param(Stream(7), 20, [3, 3, 1], id="ends before the limit"),
        pytest.param(Stream(7), 6, [3, 3], id="limit at a seam"),
        pytest.param(Stream(7), 5, [3, 2], id="limit within a window"),
        pytest.param(Stream(7), None, [3, 3, 1], id="no limit"),
        pytest.param(Claims(7, 9), None, [3, 3, 1], id="fewer than announced"),
        pytest.param(Claims(7, 9), 8, [3, 3, 1], id="fewer than announced, and a limit"),
        pytest.param(Claims(7, 4), None, [3, 3, 1], id="more than announced"),
    ],
)
def test_the_partial_window_is_stepped_and_nothing_leaks(
    loader: Stream, limit: int | None, expected: list[int], tmp_path: Path
) -> None:
    module, plain = Plain(), Plain()
    trainer = stratagem.Trainer(
        strategy="single",
        accelerator="cpu",
        max_epochs=3,
        accumulate_grad_batches=3,
        limit_train_batches=limit,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=tmp_path / "run",
    )
    trainer.fit(module, loader)
    assert trainer.global_step == 3 * len(expected)
    rest = iter(loader.batches)
    by_hand(plain, [[next(rest) for _ in range(size)] for size in expected], 3)
    for ours, theirs in zip(module.parameters(), plain.parameters()):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("count", [11, 12, 19])
def test_each_sample_of_a_global_batch_counts_alike(tmp_path: Path, count: int) -> None:
    module, plain, data = Plain(), Plain(), samples(count)
    train_own(module, tmp_path, DataLoader(data, 4), max_epochs=1, global_batch_size=12)
    by_hand(plain, [[data[:12]], [data[12:]]] if count > 12 else [[data[:]]], 1)
    for ours, theirs in zip(module.parameters(), plain.parameters()):
        torch.testing.assert_close(ours, theirs)


def test_two_ranks_of_unequal_streams_end_together_with_a_partial_window(tmp_path: Path) -> None:
    trainer = stratagem.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        max_epochs=2,
        accumulate_grad_batches=3,
        limit_train_batches=10,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=tmp_path / "run",
    )
    module, plain = Parted(), Parted()
    trainer.fit(module)
    first, second = Stream(10).batches[:5], Stream(10).batches[5:]
    pairs = [(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in zip(first, second)]
    by_hand(plain, [pairs[:3], pairs[3:]], 2)
    assert trainer.global_step == 4
    for ours, theirs in zip(module.parameters(), plain.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-8)


class Parted(Plain):
    """Rank 0 has five batches, rank 1 has more."""

    def train_dataloader(self) -> Any:
        stream = Stream(11)
        stream.batches = stream.batches[:5] if self.global_rank == 0 else stream.batches[5:]
        return stream


def test_a_loader_of_a_class_of_its_own_that_ends_early_is_refused(tmp_path: Path) -> None:
    class Half(torch.utils.data.DataLoader):
        def __iter__(self) -> Any:
            return islice(super().__iter__(), 5)

    loader = Half(samples(32), 4)
    with pytest.raises(DataError, match="was to give 8 batches and gave 5"):
        train_own(Plain(), tmp_path, loader, accumulate_grad_batches=2)


def test_a_closure_reads_its_window_ahead(tmp_path: Path) -> None:
    module, same = Closure(), Closure()
    train_own(module, tmp_path, Stream(7), accumulate_grad_batches=3)
    train_own(same, tmp_path, Claims(7, 9), accumulate_grad_batches=3)
    assert torch.equal(module.layer.weight, same.layer.weight)


def train_own(module: Any, tmp_path: Path, loader: Any = None, **how: Any) -> Any:
    trainer = stratagem.Trainer(
        strategy="single",
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=tmp_path / "run",
        seed=1,
        **how,
    )
    trainer.fit(module, loader)
    return trainer


def test_nothing_to_train_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"limit_train_batches=0\.01 leaves none of the 8 batches"):
        train(Line(), tmp_path, limit_train_batches=0.01)


def test_an_interval_that_never_comes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="val_check_interval=9 is more than the 8 batches"):
        train(Line(), tmp_path, val_check_interval=9)
    for interval in (0, 0.0):
        with pytest.raises(ConfigError, match="is not an interval"):
            train(Line(), tmp_path, val_check_interval=interval)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"val_check_interval": 3, "accumulate_grad_batches": 2}, [2, 3, 6, 7]),
        ({"val_check_interval": 2, "accumulate_grad_batches": 4}, [1, 2, 3, 4]),
        ({"val_check_interval": 4, "check_val_every_n_epoch": 2}, [12, 16]),
        ({"check_val_every_n_epoch": 2}, [16]),
    ],
)
def test_validates_after_the_step_that_completes_an_interval(
    how: dict[str, Any], expected: list[int], tmp_path: Path
) -> None:
    steps: list[int] = []

    class Notes(stratagem.Callback):
        def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
            steps.append(trainer.global_step)

    train(Line(), tmp_path, callbacks=Notes(), **how)
    assert steps == expected
