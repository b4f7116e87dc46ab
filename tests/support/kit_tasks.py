"""What ranks do in the tests of the kit's workers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def place() -> tuple[int, int, int]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.getpid()


def variables() -> list[str]:
    return [name for name in os.environ if name == "RANK" or name.startswith("TORCHELASTIC")]


def groups(count: int) -> list[float]:
    """Open a process group `count` times, and sum the ranks in each."""
    from datetime import timedelta

    from stratagem_clusters import TorchElastic

    from stratagem import ProcessGroupCollectives

    sums = []
    for _ in range(count):
        environment = TorchElastic(os.environ)
        opened = ProcessGroupCollectives(environment, torch.device("cpu"), "gloo", timedelta(seconds=10))
        total = torch.tensor(float(environment.global_rank))
        dist.all_reduce(total)
        sums.append(float(total))
        opened.close()
    return sums


def fails_on_one() -> None:
    print("printed before", flush=True)
    if os.environ["RANK"] == "1":
        1 / 0  # noqa: B018


def killed() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


def hangs() -> None:
    time.sleep(600)


def hangs_with_a_loader(folder: str) -> None:
    """Start a loader's worker behind a fork server, note both, and hang."""
    from multiprocessing import forkserver

    from torch.utils.data import DataLoader

    if os.environ["RANK"] == "1":
        samples: Any = range(8)
        loader = DataLoader(
            samples, num_workers=1, multiprocessing_context="forkserver", persistent_workers=True
        )
        batches: Any = iter(loader)
        next(batches)
        server: Any = forkserver
        started = [batches._workers[0].pid, server._forkserver._forkserver_pid]
        Path(folder, "started").write_text(" ".join(map(str, started)))
        time.sleep(600)
