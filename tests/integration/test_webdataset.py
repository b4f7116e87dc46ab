"""Shards of webdataset as a loader: ranks and workers, unequal shards, resumption, as docs/guides/data.md says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("webdataset", reason="make test-libraries")

from tarred import Tarred, seen, write_shards  # after the check, since it imports webdataset

import stratagem
from stratagem.errors import StratagemError

# webdataset leaves shards that it has read to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

SIZES = [3, 5, 4, 2, 6, 4]


def trainer(folder: Path, devices: int = 1, **how: Any) -> stratagem.Trainer:
    run = {"strategy": "ddp" if devices > 1 else "single", "accelerator": "cpu", "devices": devices}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1}
    return stratagem.Trainer(run_dir=folder / "run", **{**run, **quiet, "enable_checkpointing": False, **how})


@pytest.mark.parametrize(
    ("workers", "loader"),
    [(0, "torch"), (2, "torch"), pytest.param(2, "spawn", marks=pytest.mark.long), (2, "web")],
)
def test_ranks_and_workers_share_the_shards(tmp_path: Path, capfd: Any, workers: int, loader: str) -> None:
    shards = write_shards(tmp_path / "shards", SIZES)
    run = trainer(tmp_path, devices=2)
    run.fit(Tarred(shards, str(tmp_path), workers, loader))
    one, other = seen(tmp_path, 2)
    # Shards 0, 2 and 4 have 13 samples, and the others 11; ranks stop together when one has no batch left.
    assert {*one} <= {0, 1, 2, 8, 9, 10, 11, *range(14, 20)}
    assert {*other} <= {*range(3, 8), 12, 13, *range(20, 24)}
    assert len(other) == len({*other}) == 11
    assert abs(len(one) - len(other)) <= 2
    assert len(one) == len({*one})
    # A validation sees each sample once, though ranks have different numbers of batches.
    assert (run.callback_metrics["count"], run.callback_metrics["sum"]) == (24, sum(range(24)))
    assert "read the same" not in capfd.readouterr().err


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_fit_reads_what_it_has_not_read_in_the_same_order(tmp_path: Path, workers: int) -> None:
    shards = write_shards(tmp_path / "shards", SIZES)

    def fit(name: str, ckpt_path: str | None = None, **how: Any) -> list[int]:
        (tmp_path / name).mkdir()
        run = trainer(tmp_path / name, limit_val_batches=0, **how)
        run.fit(Tarred(shards, str(tmp_path / name), workers, shuffled=True), ckpt_path=ckpt_path)
        return seen(tmp_path / name, 1)[0]

    whole = fit("whole", max_epochs=2)
    assert sorted(whole[:24]) == sorted(whole[24:]) == list(range(24))
    assert whole[:24] != whole[24:]  # another order in the second epoch, also in new workers
    steps = 12 + 5 if workers == 0 else 13 + 5
    first = fit("first", max_epochs=2, max_steps=steps, enable_checkpointing=True)
    rest = fit("rest", str(tmp_path / "first" / "run" / "checkpoints" / "last"), max_epochs=2)
    assert first + rest == whole


def test_shards_that_no_one_splits_are_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", SIZES)
    with pytest.raises(StratagemError, match="you need to add an explicit nodesplitter"):
        trainer(tmp_path, devices=2).fit(Tarred(shards, str(tmp_path), split=False))


def test_fewer_shards_than_ranks(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", [5])
    with pytest.raises(StratagemError, match="perhaps you have fewer shards than workers"):
        trainer(tmp_path, devices=2).fit(Tarred(shards, str(tmp_path)))
