"""A Hugging Face folder of a model in shards, by us and by DCP: python tests/benchmarks/checkpoint_export.py [FOLDER]

64 tensors of 4 MiB, in two processes, each with half the rows of each. DCP's writer consolidates what the ranks have
written; ours, taken in turns with it, are `export_huggingface` by both ranks, and the way by a checkpoint: `save` of
it by both, and `stratagem checkpoint convert` of that in one process. Ours end with an fsync of every file; DCP's
doesn't sync what it has consolidated, so that it is timed as it is, and with that fsync. Raw bytes are the same bytes
written with an fsync, half of them by each process. Peak memory is that of converting alone.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch

import stratagem

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
COUNT, ROWS = 64, 1024
MEMORY = """
import resource, sys
from stratagem_convert.formats.converting import Writing, read_weights, write_weights
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
read_weights(sys.argv[1])
before = peak()
write_weights(read_weights(sys.argv[1]), sys.argv[2], "huggingface", Writing())
print(f"{peak() - before:.0f}")
"""


def run(runtime: stratagem.Runtime, folder: str) -> None:
    warnings.simplefilter("ignore")
    from stratagem_convert import export_huggingface
    from stratagem_convert.formats.converting import Writing, read_weights, write_weights
    from torch.distributed.checkpoint import HuggingFaceStorageWriter, save
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2,))
    tensors = {
        f"layer{n}.weight": distribute_tensor(torch.randn(ROWS, ROWS), mesh, [Shard(0)]) for n in range(COUNT)
    }

    raw = memoryview(torch.randn(COUNT, ROWS, ROWS).numpy()).cast("B")

    def work(name: str, turn: int) -> None:
        path = os.path.join(folder, f"{name}-{turn}")
        if name == "DCP's fsync":
            if runtime.is_main:
                sync(os.path.join(folder, f"DCP-{turn}"))
        elif name == "raw bytes":
            half = len(raw) // 2
            write(f"{path}-{runtime.rank}", raw[:half])
        elif name == "export":
            export_huggingface(
                runtime.collectives, {f"model/{key}": each for key, each in tensors.items()}, path
            )
        elif name == "DCP":
            files = dict.fromkeys(tensors, 1)
            writer = HuggingFaceStorageWriter(path, files, save_distributed=True, enable_consolidation=True)
            save(tensors, storage_writer=writer)
        elif name == "save":
            content = stratagem.Checkpoint({f"model/{key}": each for key, each in tensors.items()})
            runtime.session.checkpointer.save(path, content)
        elif runtime.is_main:
            write_weights(read_weights(os.path.join(folder, f"save-{turn}")), path, "huggingface", Writing())

    taken: dict[str, list[float]] = {
        name: [] for name in ("DCP", "DCP's fsync", "export", "save", "convert", "raw bytes")
    }
    for turn in range(ROUNDS + 1):
        for name, seconds in taken.items():
            runtime.collectives.barrier()
            began = time.perf_counter()
            work(name, turn)
            runtime.collectives.barrier()
            seconds.append(time.perf_counter() - began)
        if runtime.is_main and turn < ROUNDS:
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
    if runtime.is_main:
        report({name: seconds[1:] for name, seconds in taken.items()})  # the first has to import


def sync(folder: str) -> None:
    for name in os.listdir(folder):
        if not os.path.isdir(path := os.path.join(folder, name)):
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def write(path: str, content: memoryview) -> None:
    with open(path, "xb", buffering=0) as file:
        for start in range(0, len(content), 2**20):
            file.write(content[start : start + 2**20])
        os.fsync(file.fileno())


def report(taken: dict[str, list[float]]) -> None:
    size = COUNT * ROWS * ROWS * 4 / 1e6
    print(f"Hugging Face folder of {size:.0f} MB in shards of two processes, {ROUNDS} rounds in turns")
    for name, seconds in taken.items():
        print(f"    {name:<12}{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
    both = [a + b for a, b in zip(taken["save"], taken["convert"])]
    synced = [a + b for a, b in zip(taken["DCP"], taken["DCP's fsync"])]
    for what, theirs, ours in (
        ("DCP's time over export", taken["DCP"], taken["export"]),
        ("DCP's time over convert alone", taken["DCP"], taken["convert"]),
        ("DCP's time over save and convert", taken["DCP"], both),
        ("DCP's time with its fsync over save and convert", synced, both),
        ("export over raw bytes", taken["export"], taken["raw bytes"]),
    ):
        ratios = [a / b for a, b in zip(theirs, ours)]
        print(f"    {what}: {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")


def main(folder: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        stratagem.Runtime(strategy="ddp", accelerator="cpu", devices=2).launch(run, work, quiet=True)
        command = [
            sys.executable,
            "-c",
            MEMORY,
            os.path.join(work, f"save-{ROUNDS}"),
            os.path.join(work, "memory"),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(f"    peak memory of converting: {done.stdout.strip()} MiB")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
