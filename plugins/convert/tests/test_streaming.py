"""What converting takes of memory: some MiB, however long tensors, files and checkpoints are."""

import subprocess
import sys
from pathlib import Path

import torch
from stratagem_convert.formats.converting import read_weights

from stratagem import Checkpoint

LIMIT_MIB = 64
BIG_MIB = 128
MEASURE = """
import ctypes, sys
from pathlib import Path
import torch.distributed.checkpoint
from stratagem_convert.formats.converting import Writing, read_weights, write_weights
def status(name):
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name))
    return int(line.split()[1]) / 1024
words = [word for word in sys.argv[1:] if word != "--training"]
for source, target, name in zip(words[::3], words[1::3], words[2::3]):
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now, not what a parent had
    before = status("VmRSS")
    training = True if name in ("torch", "dcp", "lightning", "stratagem") and "--training" in sys.argv else None
    write_weights(read_weights(source), target, name, Writing(training=training))
    print(name, int(status("VmHWM") - before))
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
    assert max(measured(*words).values()) <= LIMIT_MIB
    assert read_weights("own").size_bytes == BIG_MIB * 2**20


def test_memory_is_bounded_with_a_training(tmp_path: Path, checkpointer, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    described = {"class": "SGD", "groups": [{"params": ["big"], "lr": 0.1}], "values": {}}
    big = torch.zeros(BIG_MIB * 2**8, 1024)
    tensors = {"model/big": big, "optimizer/0/big/momentum_buffer": big}
    checkpointer.save("run", Checkpoint(tensors, {"prepared": {"optimizers": [described]}}))
    words = [
        *("run", "x.pt", "torch"),
        *("x.pt", "dcp", "dcp"),
        *("dcp", "x.ckpt", "lightning"),
        *("x.ckpt", "own", "stratagem"),
    ]
    assert max(measured("--training", *words).values()) <= LIMIT_MIB
    training = read_weights("own").training
    assert training is not None
    assert training.optimizers[0].tensors()["big", "momentum_buffer"].size_bytes == BIG_MIB * 2**20


def measured(*words: str) -> dict[str, int]:
    """Format → MiB that converting to it took above what was there."""
    command = [sys.executable, "-c", MEASURE, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout)
    taken = {name: int(mib) for name, mib in map(str.split, done.stdout.splitlines())}
    assert len(taken) == 4
    return taken
