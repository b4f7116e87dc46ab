"""How long a save blocks, and how long it takes: python tests/benchmarks/background_saves.py [FOLDER]

100 million parameters with Adam, 1.2 GB, in one process; every way writes to FOLDER and ends on the disk. Ways take
turns, so that a machine that gets slower does so for all. Needs 8 GB of memory. The last lines are of the first save
of several checkpointers, one after the other, each beside its second; by the processor's time, too, which others'
work on a machine changes less.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from stratagem_checkpoint import DirectoryCheckpointer
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from stratagem import Checkpoint
from stratagem.collectives.local import LocalCollectives

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
PARAMETERS = int(os.environ.get("BENCH_PARAMETERS", str(100 * 10**6)))
TENSORS = 50

Save = Callable[[str], "Callable[[], object] | None"]
"""Saves to a path; returns what waits for the rest, if there is a rest."""


def tensors() -> dict[str, torch.Tensor]:
    """Parameters in 50 tensors, and Adam's two moments of each."""
    shape = (PARAMETERS // TENSORS // 1000, 1000)
    kinds = ("model/{}", "optimizer/0/{}/exp_avg", "optimizer/0/{}/exp_avg_sq")
    return {kind.format(number): torch.randn(shape) for number in range(TENSORS) for kind in kinds}


def sync(path: str) -> None:
    """Wait until a file, or all files of a folder, are on the disk."""
    names = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else [path]
    for name in names:
        with open(name, "rb") as file:
            os.fsync(file.fileno())


def ways(state: dict[str, torch.Tensor]) -> dict[str, Save]:
    """Each way to save, by its name."""
    local = LocalCollectives(torch.device("cpu"))
    waiting, background = DirectoryCheckpointer(local), DirectoryCheckpointer(local, async_=True)

    def raw(path: str) -> None:
        safetensors.torch.save_file(state, path)
        sync(path)

    def torch_save(path: str) -> None:
        torch.save(state, path)
        sync(path)

    def dcp_sync(path: str) -> None:
        dcp.save(state, checkpoint_id=path)
        sync(path)

    def dcp_async(kind: AsyncCheckpointerType) -> Save:
        def save(path: str) -> Callable[[], object]:
            future: Any = dcp.async_save(state, checkpoint_id=path, async_checkpointer_type=kind)

            def finish() -> None:
                future.result()
                sync(path)

            return finish

        return save

    def ours(path: str) -> None:
        waiting.save(path, Checkpoint(state))

    def ours_async(path: str) -> Callable[[], object]:
        background.save(path, Checkpoint(state))
        return background.wait

    return {
        "safetensors save_file": raw,
        "torch.save": torch_save,
        "DCP save": dcp_sync,
        "DCP async_save, thread": dcp_async(AsyncCheckpointerType.THREAD),
        "DCP async_save, process": dcp_async(AsyncCheckpointerType.PROCESS),
        "Stratagem": ours,
        "Stratagem, checkpoint.async": ours_async,
    }


def measure(folder: str) -> dict[str, list[tuple[float, float, float]]]:
    """Seconds that each save blocked, took in all, and had this process's processors, by way."""
    state = tensors()
    taken: dict[str, list[tuple[float, float, float]]] = {}
    saves = ways(state)
    for number in range(ROUNDS + 1):
        for name, save in saves.items():
            path = os.path.join(folder, f"c{number}")
            began_s, had_s = time.perf_counter(), time.process_time()
            finish = save(path)
            blocked_s = time.perf_counter() - began_s
            if finish is not None:
                finish()
            taken.setdefault(name, []).append(
                (blocked_s, time.perf_counter() - began_s, time.process_time() - had_s)
            )
            (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
            for each in state.values():
                each.add_(1)
    return taken


def firsts(folder: str) -> list[tuple[float, ...]]:
    """The first save of a checkpointer over its second: blocked, in all, and the same in processor time."""
    state, local = tensors(), LocalCollectives(torch.device("cpu"))
    ratios = []
    for number in range(ROUNDS):
        checkpointer = DirectoryCheckpointer(local, async_=True)
        time.sleep(1.0)  # in which a run would train
        pid, saves = checkpointer._background.writer.pid, []  # type: ignore[union-attr]  # async_ sets it
        for turn in range(2):
            path = os.path.join(folder, f"first{number}-{turn}")
            began = time.perf_counter(), time.process_time(), processor_s(pid)
            checkpointer.save(path, Checkpoint(state))
            blocked = time.perf_counter() - began[0], time.process_time() - began[1]
            checkpointer.wait()
            whole = (
                time.perf_counter() - began[0],
                time.process_time() - began[1] + processor_s(pid) - began[2],
            )
            saves.append((blocked[0], whole[0], blocked[1], whole[1]))
            shutil.rmtree(path)
        checkpointer.close()
        ratios.append(tuple(first / second for first, second in zip(*saves)))
    return ratios


def processor_s(pid: int) -> float:
    """Seconds that a process has had a processor (Linux)."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def main() -> None:
    """Print a line for each way."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        taken = measure(folder)
        ratios = firsts(folder)
    print(
        f"Saving {PARAMETERS / 1e6:.0f} million parameters with Adam, {12 * PARAMETERS / 1e9:.1f} GB, in seconds"
    )
    print("  median of later saves, lowest to highest; the first in brackets")
    for name, ((first_blocked, first_whole, _), *later) in taken.items():
        reported = []
        for what, first, values in (
            ("blocks", first_blocked, sorted(blocked for blocked, _, _ in later)),
            ("in all", first_whole, sorted(whole for _, whole, _ in later)),
        ):
            reported.append(
                f"{what} {statistics.median(values):5.2f} ({values[0]:.2f} to {values[-1]:.2f}) [{first:.2f}]"
            )
        print(f"    {name:<28} {'   '.join(reported)}")
    median = {name: [statistics.median(each) for each in zip(*later)] for name, (_, *later) in taken.items()}
    ours, background = median["Stratagem"], median["Stratagem, checkpoint.async"]
    print(
        f"  saving in the background blocks for {background[0] / ours[0]:.2f} of a save that waits; the aim is 0.5"
    )
    raw = median["safetensors save_file"]
    print(
        f"  a save that waits takes {ours[1] / raw[1]:.2f} of safetensors, by processor time {ours[2] / raw[2]:.2f}; "
        "the aim is 1.2"
    )
    print("  the first save of a checkpointer over its second; the aim is 2")
    for what, values in zip(
        ("blocks", "in all", "blocks, processor time", "in all, processor time"), zip(*ratios)
    ):
        print(f"    {what:<24} {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
    sys.stdout.flush()
    os._exit(0)  # DCP's process would be waited for


if __name__ == "__main__":
    main()
