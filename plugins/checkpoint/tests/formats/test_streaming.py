"""What converting takes of memory: some MiB, however long tensors, files and checkpoints are."""

import subprocess
import sys
from pathlib import Path

import torch
from stratagem_checkpoint.formats.converting import read_weights

from stratagem import Checkpoint

LIMIT_MIB = 64
BIG_MIB = 128
MEASURE = """
import resource, sys
import torch.distributed.checkpoint
from stratagem_checkpoint.formats.converting import Writing, read_weights, write_weights
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
for source, target, name in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3]):
    write_weights(read_weights(source), target, name, Writing())
    print(name, int(peak() - before))
"""


def test_memory_is_bounded(tmp_path: Path, checkpointer, monkeypatch) -> None:
    """`make bench` shows the same of files of several hundred MB."""
    monkeypatch.chdir(tmp_path)
    checkpointer.save("run", Checkpoint({"model/big": torch.zeros(BIG_MIB * 2**8, 1024)}))
    words = [
        "run",
        "x.pt",
        "torch",
        "x.pt",
        "dcp",
        "dcp",
        "dcp",
        "hf",
        "huggingface",
        "hf",
        "own",
        "stratagem",
    ]
    command = [sys.executable, "-c", MEASURE, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    taken = {name: int(mib) for name, mib in map(str.split, done.stdout.splitlines())}
    assert len(taken) == 4
    assert max(taken.values()) <= LIMIT_MIB, taken
    assert read_weights("own").size_bytes == BIG_MIB * 2**20
