"""Two processes started by hand, with some of a launcher's variables: one training, or none."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json
import sys

import torch

import stratagem


def main(runtime):
    ranks = runtime.collectives.gather_objects((runtime.rank, runtime.local_rank, runtime.collectives.node_rank))
    total = runtime.all_reduce(torch.ones(()), "sum").item()
    if runtime.is_main:
        print(json.dumps([ranks, total]), flush=True)


if __name__ == "__main__":
    stratagem.Runtime("ddp", accelerator="cpu", devices=int(sys.argv[1]), num_nodes=int(sys.argv[2])).launch(main)
"""
MODULE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

import stratagem


class Net(stratagem.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(8, 2)), 2)
"""


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def run(command: list[str], folder: Path, environments: list[dict[str, str]]) -> list[tuple[int, str, str]]:
    """By process: exit code, output, messages."""
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments
    ]
    ended = []
    for process in processes:
        output, messages = process.communicate(timeout=240)
        ended.append((process.returncode, output, messages))
    return ended


@pytest.mark.parametrize("form", ["per process", "per process, two nodes", "per node"])
def test_two_commands_are_one_run(tmp_path: Path, form: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    if form == "per process":
        arguments = ("2", "1")
        own = [{"WORLD_SIZE": "2", "LOCAL_RANK": str(rank)} for rank in range(2)]
    elif form == "per process, two nodes":
        arguments = ("1", "2")
        own = [{"WORLD_SIZE": "2", "LOCAL_RANK": "0", "NODE_RANK": str(node)} for node in range(2)]
    else:
        arguments = ("1", "2")
        own = [{"WORLD_SIZE": "2", "NODE_RANK": str(node)} for node in range(2)]
    ended = run(["program.py", *arguments], tmp_path, [{**common, **each} for each in own])
    assert [code for code, *_ in ended] == [0, 0], ended
    assert [messages.startswith("plan\n") for *_, messages in ended] == [True, False]
    # One process prints, for one group.
    ranks, total = json.loads("".join(output for _, output, _ in ended))
    assert total == 2
    assert ranks == ([[0, 0, 0], [1, 1, 0]] if form == "per process" else [[0, 0, 0], [1, 0, 1]])


def test_variables_that_say_too_little_end_both_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODULE)
    flags = ["--accelerator", "cpu", "--devices", "1", "--max-epochs", "1", "--run-dir", "run"]
    command = ["-m", "stratagem", "fit", "net.py:Net", *flags]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    ended = run(command, tmp_path, [place, {**place, "RANK": "", "NODE_RANK": "1"}])
    for code, output, messages in ended:
        assert code == 2, messages
        assert "WORLD_SIZE=2" in messages
        assert "but this run starts 1 on each of 1 nodes" in messages
        assert "Traceback" not in messages + output
    assert not (tmp_path / "run").exists()
