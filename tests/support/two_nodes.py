"""Two machines on one: what they reach each other by, and a module that tells where it is trained."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from namespaces import Node, address_of, machines
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stratagem

ADDRESSES = (address_of(0), address_of(1))


@contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Make two machines."""
    with machines(2) as (first, second):
        yield first, second


class Placed(stratagem.Module):
    """A small regression of blocks.

    Args:
        batch_size: of a loader's batch.
        folder: where each rank leaves `rank<N>.json` about itself; none if empty.
    """

    def __init__(self, batch_size: int = 16, folder: str = "") -> None:
        super().__init__()
        self.batch_size, self.folder = batch_size, folder
        with torch.random.fork_rng():
            torch.manual_seed(0)
            blocks = (nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))
            self.net = nn.Sequential(nn.Linear(6, 16), *blocks, nn.Linear(16, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_epoch_start(self) -> None:
        if self.folder:
            place = Path(self.folder, f"rank{self.global_rank}.json")
            place.write_text(json.dumps(self.place()))

    def place(self) -> dict[str, Any]:
        weight = self.net[0].weight
        mesh = getattr(weight, "device_mesh", None)
        return {
            "node": int(os.environ["GROUP_RANK"]),
            "network": os.readlink("/proc/self/ns/net"),
            "mesh": None if mesh is None else mesh.mesh.tolist(),
        }

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def train_dataloader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(320, 6, generator=generator)
        return DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), self.batch_size, shuffle=True)
