"""What checksums take of saving and loading: python tests/benchmarks/checksums.py [FOLDER]

A checkpoint of 1 GiB, saved and loaded in one process. The time in checksums is taken within each save and
load, over the rest of it, so that a busy machine slows both alike. Loads come from the page cache, where
reading is as fast as can be and so checksums weigh most; saves wait for the disk of FOLDER.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from stratagem_checkpoint import DirectoryCheckpointer, checksums

from stratagem import Checkpoint
from stratagem.collectives.local import LocalCollectives

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
KINDS = {"16 tensors of 64 MiB": (16, 4096, 4096), "4,096 tensors of 256 KiB": (4096, 256, 256)}


class Timed:
    """A function, and the seconds that were spent in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.function(*arguments)
        finally:
            self.seconds += time.perf_counter() - began


def share(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the whole, and those in checksums over the rest."""
    adding, comparing = Timed(checksums.BlockChecksums._add), Timed(checksums.checksum)
    with (
        patch.object(checksums.BlockChecksums, "_add", lambda *arguments: adding(*arguments)),
        patch.object(checksums, "checksum", comparing),
    ):
        whole = Timed(work)
        whole()
    inside = adding.seconds + comparing.seconds
    return whole.seconds, inside / (whole.seconds - inside)


def measure(folder: str, count: int, rows: int, columns: int) -> None:
    checkpointer = DirectoryCheckpointer(LocalCollectives(torch.device("cpu")))
    tensors = {f"model/{number}": torch.randn(rows, columns) for number in range(count)}
    targets = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}
    path = os.path.join(folder, "c")
    for name, work in (
        ("saving ", lambda: checkpointer.save(path, Checkpoint(tensors))),
        ("loading", lambda: checkpointer.open(path).read(targets)),
    ):
        work()
        rounds = [share(work) for _ in range(ROUNDS)]
        shares = sorted(each for _, each in rounds)
        print(
            f"    {name}: {statistics.median(whole for whole, _ in rounds):.2f} s, checksums over the rest "
            f"{statistics.median(shares):.1%} ({shares[0]:.1%} to {shares[-1]:.1%})"
        )


def main() -> None:
    torch.set_num_threads(1)
    print("Checksums of a checkpoint of 1 GiB; the aim is 10 %")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for kind, sizes in KINDS.items():
            print(f"  {kind}")
            measure(folder, *sizes)


if __name__ == "__main__":
    main()
