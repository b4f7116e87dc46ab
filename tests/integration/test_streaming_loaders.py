"""Streams of litdata and of MosaicML's streaming resume with the next sample; skipped where they aren't installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stratagem

COUNT, BATCH = 64, 4


def _numbered(index: int) -> dict[str, Any]:
    return {"number": index, "x": torch.full((4,), index / COUNT)}


def _lit(folder: Path) -> Callable[[int], Any]:
    litdata = importlib.import_module("litdata")
    litdata.optimize(
        fn=_numbered, inputs=list(range(COUNT)), output_dir=str(folder), chunk_size=8, num_workers=1
    )
    return lambda workers: litdata.StreamingDataLoader(
        litdata.StreamingDataset(str(folder), shuffle=True, seed=3), batch_size=BATCH, num_workers=workers
    )


def _mosaic(folder: Path) -> Callable[[int], Any]:
    streaming = importlib.import_module("streaming")
    columns = {"number": "int", "x": "ndarray:float32:4"}
    with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=1024) as out:
        for index in range(COUNT):
            out.write({"number": index, "x": np.full(4, index / COUNT, dtype=np.float32)})
    return lambda workers: streaming.StreamingDataLoader(
        streaming.StreamingDataset(local=str(folder), shuffle=True, shuffle_seed=3, batch_size=BATCH),
        batch_size=BATCH,
        num_workers=workers,
    )


class Numbers(stratagem.Module):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.layer, self.seen, self.folder = torch.nn.Linear(4, 1), [], folder

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append(batch["number"].tolist())
        return self.layer(batch["x"]).square().mean()

    def on_train_end(self) -> None:
        self.trainer.save_checkpoint(str(self.folder / f"at-{self.trainer.global_step}"))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize(("library", "made"), [("litdata", _lit), ("streaming", _mosaic)])
@pytest.mark.parametrize("workers", [0, 1])
def test_it_goes_on_with_the_next_sample(
    library: str, made: Callable[[Path], Callable[[int], Any]], workers: int, tmp_path: Path
) -> None:
    pytest.importorskip(library, exc_type=ImportError)
    loader_of = made(tmp_path / "data")

    def fit(steps: int, ckpt_path: str | None = None) -> list[list[int]]:
        module = Numbers(tmp_path)
        trainer = stratagem.Trainer(
            strategy="single",
            accelerator="cpu",
            max_steps=steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            run_dir=tmp_path / "run",
        )
        trainer.fit(module, loader_of(workers), ckpt_path=ckpt_path)
        return module.seen

    per_epoch = COUNT // BATCH
    whole = fit(2 * per_epoch)
    assert sorted(number for batch in whole[:per_epoch] for number in batch) == list(range(COUNT))
    for steps in (5, per_epoch, per_epoch + 3):
        before = fit(steps)
        assert before == whole[:steps]
        after = fit(2 * per_epoch, str(tmp_path / f"at-{steps}"))
        assert after == whole[steps:], steps
