"""Flips single bits of checkpoints, and counts what is accepted: python tests/support/flips.py COUNT FOLDER…"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch
from stratagem_checkpoint import DirectoryCheckpointer

from stratagem import CheckpointReader
from stratagem.collectives.local import LocalCollectives
from stratagem.errors import CheckpointError


def read_all(folder: Path) -> CheckpointReader:
    """Open a checkpoint in this process, and read each tensor and all ranks' states."""
    reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(str(folder))
    reader.read({key: torch.empty(info.shape, dtype=info.dtype) for key, info in reader.tensors.items()})
    for rank in range(reader.world_size):
        reader.rank_state(rank)
    return reader


def accepted_flips(folder: Path, count: int, seed: int) -> list[str]:
    """Flip one random bit at a time, in files drawn alike; return each that a CheckpointError didn't name."""
    draw = random.Random(seed)
    files = sorted(file for file in folder.iterdir() if file.stat().st_size)
    accepted = []
    for _ in range(count):
        file = draw.choice(files)
        content = file.read_bytes()
        bit = draw.randrange(8 * len(content))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            read_all(folder)
            accepted.append(f"bit {bit} of {file.name}")
        except CheckpointError as error:
            if str(folder) not in str(error):
                accepted.append(f"bit {bit} of {file.name}: {error}")
        finally:
            file.write_bytes(content)
    return accepted


if __name__ == "__main__":
    for number, name in enumerate(sys.argv[2:]):
        read_all(Path(name))
        reported = accepted_flips(Path(name), int(sys.argv[1]), number)
        print(f"{name}: {sys.argv[1]} flips, {len(reported)} accepted", *reported, sep="\n  ")
