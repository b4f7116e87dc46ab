"""Tasks for the tests of data in memory, in a module that every worker can import."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch


def meet(folder: str, what: str) -> None:
    """Wait until both ranks have come here."""
    Path(folder, f"{what}.{os.environ['RANK']}").touch()
    while len(list(Path(folder).glob(f"{what}.?"))) < 2:
        time.sleep(0.01)


def write_in_turn(given: object, folder: str) -> list[float]:
    """Return what rank 0 finds in a tensor, an array and a module after rank 1 has written to them."""
    tensor, array, module = given
    if os.environ["RANK"] == "1":
        tensor.add_(100)
        array += 100
        with torch.no_grad():
            module.weight.fill_(100)
    meet(folder, "written")
    seen = [float(tensor.max()), float(array.max()), float(module.weight.detach().max())]
    tensor.add_(1000)
    array += 1000
    meet(folder, "read")
    return seen


def fail_once(tensor: torch.Tensor, folder: str) -> float:
    """Write to a tensor; fail at the first attempt, and return what the second one was given."""
    first = float(tensor.sum())
    tensor.zero_()
    if not Path(folder, "failed").exists():
        Path(folder, "failed").touch()
        raise RuntimeError("the first attempt")
    return first


def maps(*paths: str) -> list[int]:
    """Return how many maps of each file this process has."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [sum(line.endswith(path) for line in lines) for path in paths]


def inode_of(tensor: torch.Tensor) -> int:
    """Return the inode of the file that a tensor's memory is a map of; 0 for none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return int(line.split()[4])
    raise LookupError(tensor.data_ptr())


def sum_of(loader: object) -> float:
    """Return the sum of all that a loader gives."""
    return sum(float(batch.sum()) for batch in loader)
