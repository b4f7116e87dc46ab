"""A module that reads shards of webdataset, and notes in a file per rank which samples it trains on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from torch import Tensor, nn
from torch.utils.data import DataLoader

import stratagem


def write_shards(folder: Path, sizes: Sequence[int]) -> str:
    """Write a shard of each size, with samples 0, 1, 2 …; return their names as webdataset takes them."""
    folder.mkdir()
    number = 0
    for index, size in enumerate(sizes):
        with wds.TarWriter(str(folder / f"{index:03d}.tar")) as shard:
            for _ in range(size):
                shard.write({"__key__": f"{number:06d}", "cls": number})
                number += 1
    return f"{folder}/{{000..{len(sizes) - 1:03d}}}.tar"


def as_tensor(sample: dict[str, Any]) -> tuple[Tensor]:
    return (torch.tensor([float(sample["cls"])]),)


class Tarred(stratagem.Module):
    """Trains on each sample; a validation counts them.

    Args:
        shards: their names.
        notes: folder for what each rank saw, epoch by epoch.
        workers: of a loader.
        loader: "torch", "spawn" (the same with spawned workers) or "web", for `webdataset.WebLoader`.
        shuffled: in an order by epoch.
        split: give each rank its own shards.
    """

    def __init__(
        self,
        shards: str,
        notes: str,
        workers: int = 0,
        loader: str = "torch",
        shuffled: bool = False,
        split: bool = True,
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.shards, self.notes, self.workers, self.kind = shards, notes, workers, loader
        self.shuffled, self.split = shuffled, split
        self.seen: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen += [int(number) for number in batch[0].flatten()]
        loss: Tensor = self.layer(batch[0]).mean() * 0
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("count", float(len(batch[0])), reduce_fx="sum", sync_dist=True)
        self.log("sum", batch[0].sum(), reduce_fx="sum", sync_dist=True)

    def on_train_end(self) -> None:
        Path(self.notes, f"{self.trainer.global_rank}.json").write_text(json.dumps(self.seen))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        how: dict[str, Any] = {"nodesplitter": wds.split_by_node} if self.split else {}
        shuffled = (
            {"shardshuffle": 10, "detshuffle": True, "seed": 7} if self.shuffled else {"shardshuffle": False}
        )
        data = wds.WebDataset(self.shards, **shuffled, **how)
        if self.shuffled:
            data = data.compose(wds.detshuffle(4, initial=4, seed=7))
        data = data.decode().map(as_tensor)
        if self.kind == "web":
            return wds.WebLoader(data.batched(2), batch_size=None, num_workers=self.workers)
        context = "spawn" if self.kind == "spawn" else None
        return DataLoader(data, batch_size=2, num_workers=self.workers, multiprocessing_context=context)

    val_dataloader = train_dataloader


def seen(notes: Path, ranks: int) -> list[list[int]]:
    """Return what each rank trained on."""
    return [json.loads((notes / f"{rank}.json").read_text()) for rank in range(ranks)]
