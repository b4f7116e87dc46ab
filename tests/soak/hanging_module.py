"""A module in which one rank hangs, in ways that happen to people."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import stratagem

STEP = 5
"""The step at which the rank hangs."""


class Stalling(Dataset[Tensor]):
    """Numbers, of which one never comes."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> Tensor:
        if index == STEP * 8:
            with open(f"{self.folder}/began.loader", "w") as file:
                file.write(str(time.time()))
            time.sleep(3600)  # loader stall
        return torch.full((4,), index / 1024)


class Hanging(stratagem.Module):
    """Hangs as `kind` says on one rank."""

    def __init__(self, kind: str, folder: str, victim: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.kind, self.folder, self.victim = kind, folder, victim

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == STEP:
            with open(f"{self.folder}/began.{self.global_rank}", "w") as file:
                file.write(str(time.time()))
            own = getattr(self, f"_{self.kind}", None)
            if own is not None:
                own(self.global_rank == self.victim)
        return self.net(batch).square().mean()

    def _skipped_collective(self, is_victim: bool) -> None:
        if not is_victim:
            dist.all_reduce(torch.ones(7))

    def _wrong_shape(self, is_victim: bool) -> None:
        dist.all_reduce(torch.ones(8 if is_victim else 7))  # wrong shape

    def _wrong_dtype(self, is_victim: bool) -> None:
        dist.all_reduce(torch.ones(7, dtype=torch.float64 if is_victim else torch.float32))  # wrong dtype

    def _rank_dependent_branch(self, is_victim: bool) -> None:
        if is_victim:
            dist.barrier()  # rank-dependent branch

    def _dead_peer(self, is_victim: bool) -> None:
        if is_victim:
            os.kill(os.getpid(), signal.SIGKILL)

    def _sigstop(self, is_victim: bool) -> None:
        if is_victim:
            os.kill(os.getpid(), signal.SIGSTOP)  # SIGSTOP

    def _stuck_filesystem(self, is_victim: bool) -> None:
        if is_victim:
            os.mkfifo(f"{self.folder}/pipe")
            open(f"{self.folder}/pipe")  # noqa: SIM115 - stuck filesystem

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        # Loaders of different lengths are refused or cut by the trainer; this is what still can be done.
        is_over = self.kind == "uneven_epochs" and batch_idx > STEP and self.global_rank == self.victim
        return -1 if is_over else None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.kind == "infinite_loop" and batch_idx == STEP and self.global_rank == self.victim:
            all(iter(lambda: True, False))  # infinite loop

    def on_fit_end(self) -> None:
        if self.kind == "deadlock_in_teardown" and self.global_rank == self.victim:
            with open(f"{self.folder}/began.{self.global_rank}", "w") as file:
                file.write(str(time.time()))
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()  # deadlock in teardown

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        if self.kind == "loader_stall":
            return DataLoader(Stalling(self.folder), 4, num_workers=1)
        return DataLoader(torch.arange(800.0).reshape(-1, 4) / 800, 4)
