"""Launchers that meet on this machine, as processes of their own, and what their ranks saw."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

SAMPLES, BATCH, EVERY = 120, 2, 4

MODULE = f"""
import json, os, time
import torch
from torch.utils.data import DataLoader, TensorDataset
import stratagem


class Net(stratagem.Module):
    def __init__(self, folder: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 3)
        self.folder = folder

    def training_step(self, batch, batch_idx):
        x, numbers = batch
        attempt = self.trainer.runtime.session.run.environment.attempt
        answer = self.layer(torch.ones(1, 1)).sum().item()
        entry = [attempt, self.trainer.world_size, self.trainer.global_step, numbers.tolist(), answer]
        with open(os.path.join(self.folder, f"seen.{{os.getpid()}}"), "a") as file:
            file.write(json.dumps(entry) + "\\n")
        if self.trainer.global_step > {EVERY} and not os.path.exists(os.path.join(self.folder, "go")):
            time.sleep(1)
        return (self.layer(x) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def train_dataloader(self):
        numbers = torch.arange({SAMPLES})
        return DataLoader(TensorDataset(numbers.float().unsqueeze(1), numbers), {BATCH}, shuffle=True)
"""

CONFIG = f"""
trainer:
  callbacks:
  - class_path: stratagem.ModelCheckpoint
    init_args: {{every_n_train_steps: {EVERY}, save_top_k: -1}}
"""


class Nodes:
    """Launchers that meet at one port, each as a process of its own."""

    address = "127.0.0.1"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "net.py").write_text(MODULE)
        (folder / "every.yaml").write_text(CONFIG)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.started: list[subprocess.Popen[bytes]] = []

    def go(self) -> None:
        """Let ranks train at full speed, which wait after the first checkpoint for what is to happen."""
        (self.folder / "go").touch()

    def start(self, *flags: str, prefix: Sequence[str] = (), **variables: str) -> subprocess.Popen[bytes]:
        """Start a launcher.

        Args:
            flags: of `stratagem fit`.
            prefix: what stands before the command, so that it runs elsewhere.
            variables: of its environment.
        """
        rendezvous = [
            *("--rdzv-endpoint", f"{self.address}:{self.port}"),
            *("--rdzv-conf", "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5"),
        ]
        command = [
            *(*prefix, sys.executable, "-m", "stratagem", "fit", "net.py:Net", "--config", "every.yaml"),
            *("--strategy", "ddp", "--accelerator", "cpu", "--devices", "1", "--run-dir", "run"),
            *(rendezvous if "--num-nodes" in flags else ()),
            *("--max-epochs", "1", "--seed", "3", "--set", f"model.folder={self.folder}"),
            *("--set", "trainer.enable_progress_bar=false", "--set", "strategy.start_method=fork", *flags),
        ]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        with open(self.log(len(self.started)), "wb") as log:
            node = subprocess.Popen(
                command, cwd=self.folder, env=environ, stdout=log, stderr=subprocess.STDOUT
            )
        self.started.append(node)
        return node

    def log(self, number: int) -> Path:
        return self.folder / f"node{number}.log"

    def seen(self) -> list[tuple[int, int, int, list[int], float]]:
        """What every rank saw: the attempt, the world size, the step, the samples, what the net says to 1."""
        lines = [line for path in self.folder.glob("seen.*") for line in path.read_text().splitlines()]
        return [tuple(json.loads(line)) for line in lines if line.endswith("]")]

    def seen_last(self) -> int:
        """The world size of the latest attempt."""
        return max(self.seen(), key=lambda entry: entry[0], default=(0, 0))[1]

    def wait_until(self, holds: Callable[[], bool], timeout_s: float = 200) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, self.output()
            assert any(node.poll() is None for node in self.started), self.output()
            time.sleep(0.1)

    def end(self) -> None:
        """Kill those that still run."""
        for node in self.started:
            if node.poll() is None:
                node.kill()
            node.wait()

    def output(self) -> str:
        return "\n".join(self.log(number).read_text()[-3000:] for number in range(len(self.started)))


def check_each_sample_once(nodes: Nodes, *world_sizes: int) -> None:
    """What each attempt trained before the checkpoint that the next one went on from is one whole epoch.

    That is one of every so many steps, or the one that ranks saved when they were asked to stop.
    """
    seen = nodes.seen()
    attempts = sorted({attempt for attempt, *_ in seen})
    sizes = [{size for a, size, *_ in seen if a == attempt} for attempt in attempts]
    assert sizes[len(sizes) - len(world_sizes) :] == [{size} for size in world_sizes], nodes.output()
    starts = [min(step for a, _, step, *_ in seen if a == attempt) for attempt in attempts]
    assert starts[-1] > 0
    ends = dict(zip(attempts, [*starts[1:], SAMPLES]))
    kept = [number for attempt, _, step, numbers, _ in seen if step < ends[attempt] for number in numbers]
    assert sorted(kept) == list(range(SAMPLES))
    # Nets answer alike before a step that an attempt ended in or after and the next one began with.
    for before, attempt, start in zip(attempts, attempts[1:], starts[1:]):
        answers = [answer for a, _, step, _, answer in seen if a in (before, attempt) and step == start]
        assert answers == pytest.approx([answers[0]] * len(answers), abs=1e-6)
