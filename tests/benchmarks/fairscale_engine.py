"""FairScale under Stratagem beside itself by hand: python tests/benchmarks/fairscale_engine.py [sharded]

Steps of the Trainer and of a plain loop take turns (`tests/benchmarks/interleaved.py`): in two processes with OSS and
ShardedDDP, in one with Pipe. The figures are medians over pairs of 100 steps each: the ratio of steps per second on
the clock, and of the process's CPU time, which other work on the machine changes less.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from functools import partial
from typing import Any

import torch
from interleaved import SIZES, Size, Steps, compare, net, stepping
from stratagem_fairscale import FairScalePipeStrategy, FairScaleShardedStrategy


def sharded_by_hand(buffer_size: int, size: Size, rank: int) -> Steps:
    from fairscale.nn import ShardedDataParallel
    from fairscale.optim import OSS

    class ByHand(OSS):
        """torch wraps the `step` of each class that is made an object of, and ours is derived from OSS."""

    module = net(size)
    optimizer = ByHand(module.parameters(), optim=torch.optim.AdamW, lr=1e-4)
    model = ShardedDataParallel(module, optimizer, reduce_buffer_size=buffer_size)
    # With buckets this is the way to drop gradients that gives right numbers.
    return stepping(model, optimizer, model.zero_grad if buffer_size else optimizer.zero_grad, size, rank)


def pipe_by_hand(size: Size, rank: int) -> Steps:
    from fairscale.nn import Pipe

    module = net(size)
    half = len(module) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = Pipe(module, [half, len(module) - half], devices=["cpu", "cpu"], chunks=2, checkpoint="never")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return stepping(model, optimizer, optimizer.zero_grad, size, rank)


def main() -> None:
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    is_enough = True
    kinds: dict[str, tuple[Any, Any]] = {"fairscale_pipe": (pipe_by_hand, FairScalePipeStrategy)}
    if "RANK" in os.environ:
        kinds = {
            f"fairscale_sharded{what}": (
                partial(sharded_by_hand, buffer_size),
                partial(FairScaleShardedStrategy, reduce_buffer_size=buffer_size),
            )
            for what, buffer_size in (("", 0), (" in buckets", 2**23))
        }
    with tempfile.TemporaryDirectory() as folder:
        for size_name, size in SIZES.items():
            for kind, (by_hand, strategy) in kinds.items():
                name = f"{kind}, {size_name}"
                is_enough &= compare(name, strategy(), size, rank, folder, partial(by_hand, size, rank))
    sys.exit(rank == 0 and not is_enough)


if __name__ == "__main__":
    if sys.argv[1:] == ["sharded"] and "RANK" not in os.environ:
        run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", __file__]
        os.execv(sys.executable, run)
    main()
