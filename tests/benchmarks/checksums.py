"""What checksums add to saving and loading: python tests/benchmarks/checksums.py [FOLDER]

Tensors of 1 GiB, saved and loaded in turn with and without. Loads come from the page cache, where reading
is as fast as can be and so checksums weigh most; saves wait for the disk. CPU time, and time by the clock.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from unittest.mock import patch

import torch

from stratagem.checkpoint import Checkpoint, DirectoryCheckpointer
from stratagem.checkpoint.checksums import BlockChecksums
from stratagem.collectives.local import LocalCollectives

PAIRS = int(os.environ.get("BENCH_PAIRS", "9"))
KINDS = {"16 tensors of 64 MiB": (16, 4096, 4096), "16,384 tensors of 64 KiB": (16384, 128, 128)}


def taken(work: Callable[[], object]) -> tuple[float, float]:
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - cpu


def measure(folder: str, count: int, rows: int, columns: int) -> None:
    checkpointer = DirectoryCheckpointer(LocalCollectives(torch.device("cpu")))
    whole = torch.randn(count, rows, columns)
    tensors = {f"model/{number}": tensor.clone() for number, tensor in enumerate(whole)}
    targets = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}
    path = os.path.join(folder, "c")

    def save(with_checksums: bool) -> tuple[float, float]:
        if with_checksums:
            return taken(lambda: checkpointer.save(path, Checkpoint(tensors)))
        with patch.object(BlockChecksums, "passing", lambda checksums, parts: parts):
            return taken(lambda: checkpointer.save(f"{path}-without", Checkpoint(tensors)))

    def load(with_checksums: bool) -> tuple[float, float]:
        return taken(lambda: checkpointer.open(path, verify=with_checksums).read(targets))

    for name, work in (("saving", save), ("loading", load)):
        pairs = []
        for number in range(PAIRS + 1):
            kinds = (True, False) if number % 2 else (False, True)
            done = {kind: work(kind) for kind in kinds}
            if number:  # the first is warm-up
                pairs.append((done[True], done[False]))
        for what, index in (("clock", 0), ("CPU", 1)):
            ratios = sorted(one[index] / other[index] for one, other in pairs)
            seconds = statistics.median(one[index] for one, _ in pairs)
            print(
                f"    {name}, {what:5}: {seconds:.2f} s, over the same without {statistics.median(ratios):.3f} "
                f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
            )


def main() -> None:
    print("Checkpoints of 1 GiB with checksums, over the same without")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for kind, sizes in KINDS.items():
            print(f"  {kind}")
            measure(folder, *sizes)


if __name__ == "__main__":
    main()
