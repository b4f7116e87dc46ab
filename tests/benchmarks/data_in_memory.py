"""1 GiB of data that the launching process holds, in 4 processes: python tests/benchmarks/data_in_memory.py [shared]

With `shared`, the data is moved into shared memory before, by `stratagem.shared`.

The same program with a loader over 1 GiB and over next to nothing, alternating. Time goes from the call of
`launch` to rank 0's first optimizer step. Memory is the proportional set size (PSS) of all processes together:
its highest value until every rank has read all of the data and taken a step, and its value then.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
PROCESSES = 4
SIZE_BYTES = 1 << 30
GIB = 1 << 30


def program(size_bytes: int, folder: str, is_shared: bool) -> None:
    """Launch ranks that read a loader's data; the parent measures until it makes the file `measured`."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import stratagem

    features = torch.empty(size_bytes // 1024, 256)
    for rows in features.split(1 << 16):
        rows.normal_()
    del rows  # a view would keep the original
    if is_shared:
        features = stratagem.shared(features)
    loader = DataLoader(TensorDataset(features), 64)
    runtime = stratagem.Runtime(strategy="ddp", accelerator="cpu", devices=PROCESSES)
    Path(folder, "launched").write_text(repr(time.time()))
    runtime.launch(work, loader, folder, quiet=True)


def work(runtime: Any, loader: Any, folder: str) -> None:
    """Take a step, and read all of the data."""
    import torch

    net = torch.nn.Linear(256, 1)
    module, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
    (batch,) = next(iter(loader))
    runtime.backward(module(batch).square().mean())
    optimizer.step()
    if runtime.rank == 0:
        Path(folder, "stepped").write_text(repr(time.time()))
    loader.dataset.tensors[0].amax()
    runtime.collectives.barrier("every rank has read the data")
    Path(folder, f"read.{runtime.rank}").touch()
    while not Path(folder, "measured").exists():
        time.sleep(0.02)


def measure(size_bytes: int, *how: str) -> tuple[float, float, float]:
    """Run the program; return seconds of its start, and PSS in bytes: the highest, and at the end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, str(size_bytes), folder, *how]
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as started:
            highest, process = 0, psutil.Process(started.pid)
            while len(list(Path(folder).glob("read.*"))) < PROCESSES:
                if started.poll() is not None:
                    sys.exit(f"the program ended with code {started.returncode}:\n{started.communicate()[1]}")
                if Path(folder, "launched").exists():
                    highest = max(highest, pss(process))
                time.sleep(0.1)
            at_end = pss(process)
            Path(folder, "measured").touch()
        began, stepped = (float(Path(folder, name).read_text()) for name in ("launched", "stepped"))
    return stepped - began, max(highest, at_end), at_end


def pss(process: psutil.Process) -> int:
    """Return the PSS of a process and all below it, in bytes."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except psutil.Error:  # it has just ended
            continue
    return total


def main(*how: str) -> None:
    pairs = [(measure(SIZE_BYTES, *how), measure(1024, *how)) for _ in range(ROUNDS)]
    starts = [full[0] / empty[0] for full, empty in pairs]
    print(f"start: {statistics.median(starts):.3f}x ({min(starts):.3f} to {max(starts):.3f})")
    for name, column in (("highest", 1), ("once all ranks have read it", 2)):
        more = [(full[column] - empty[column]) / SIZE_BYTES for full, empty in pairs]
        print(
            f"memory, {name}: {statistics.median(more):.3f} of the data ({min(more):.3f} to {max(more):.3f})"
        )
    seconds = [statistics.median(pair[index][0] for pair in pairs) for index in (0, 1)]
    print(
        f"{PROCESSES} processes: {seconds[0]:.2f} s with {SIZE_BYTES / GIB:.0f} GiB, {seconds[1]:.2f} s without"
    )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        program(int(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["shared"])
    else:
        main(*sys.argv[1:])
