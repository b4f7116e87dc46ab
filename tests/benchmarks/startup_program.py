"""The program of startup.py: a small net, one step; once for Stratagem and once by hand for torchrun."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(256, 32, generator=generator), torch.randint(0, 2, (256,), generator=generator)
    )


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))


def note_first_step(rank: int) -> None:
    if rank == 0:
        with open(os.environ["BENCH_FIRST_STEP"], "w") as file:
            file.write(repr(time.time()))


def by_hand() -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data.distributed import DistributedSampler

    dist.init_process_group("gloo")
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = dataset()
    for x, y in DataLoader(data, 16, sampler=DistributedSampler(data)):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        break
    note_first_step(dist.get_rank())
    # gloo aborts the interpreter's exit now and then while a reducer is alive.
    del model, optimizer, loss
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    by_hand()
else:
    import stratagem

    class Startup(stratagem.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(dataset(), 16)

        def on_train_epoch_end(self) -> None:
            note_first_step(self.global_rank)
