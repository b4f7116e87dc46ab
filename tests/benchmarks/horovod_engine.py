"""Horovod under Stratagem beside itself by hand: .venv-horovod/bin/python tests/benchmarks/horovod_engine.py

In two processes that horovodrun starts, steps of the Trainer and of a plain loop with `hvd.DistributedOptimizer` take
turns (`tests/benchmarks/interleaved.py`); the figure is the median over pairs of 100 steps each of the ratio of
steps per second, on the clock. Horovod starts once in these processes, with its own fusion threshold, which a run of
ours would set to 0.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from interleaved import SIZES, Size, Steps, compare, net, stepping
from stratagem_horovod import HorovodStrategy


def by_hand(size: Size, rank: int) -> Steps:
    import horovod.torch as hvd

    module = net(size)
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.AdamW(module.parameters(), lr=1e-4), named_parameters=module.named_parameters()
    )
    hvd.broadcast_parameters(module.state_dict(), root_rank=0)
    return stepping(module, optimizer, optimizer.zero_grad, size, rank)


def main() -> None:
    rank = int(os.environ["HOROVOD_RANK"])
    torch.set_num_threads(1)
    is_enough = True
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            strategy = HorovodStrategy(scale_lr=False)
            is_enough &= compare(name, strategy, size, rank, folder, partial(by_hand, size, rank))
    sys.exit(rank == 0 and not is_enough)


if __name__ == "__main__":
    if "HOROVOD_RANK" not in os.environ:
        here = Path(sys.executable).parent
        os.environ["PATH"] = f"{here}{os.pathsep}{os.environ['PATH']}"
        os.environ["HOROVOD_FUSION_THRESHOLD"] = str(128 * 2**20)
        os.execv(here / "horovodrun", ["horovodrun", "--gloo", "-np", "2", sys.executable, __file__])
    main()
