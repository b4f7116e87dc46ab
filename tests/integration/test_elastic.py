"""Launchers that are killed and launchers that join, as processes of their own on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Restarting takes its time on a busy machine.
pytestmark = pytest.mark.timeout(400)

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

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        rendezvous = [
            *("--rdzv-endpoint", f"127.0.0.1:{self.port}"),
            *("--rdzv-conf", "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5"),
        ]
        command = [
            *(sys.executable, "-m", "stratagem", "fit", "net.py:Net", "--config", "every.yaml"),
            *("--strategy", "ddp", "--accelerator", "cpu", "--devices", "1", "--run-dir", "run"),
            *(rendezvous if "--num-nodes" in flags else ()),
            *("--max-epochs", "1", "--seed", "3", "--set", f"model.folder={self.folder}"),
            *("--set", "trainer.enable_progress_bar=false", "--set", "strategy.start_method=fork", *flags),
        ]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
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
        return [tuple(json.loads(line)) for line in lines if line.endswith("]")]  # type: ignore[misc]

    def seen_last(self) -> int:
        """The world size of the latest attempt."""
        return max(self.seen(), key=lambda entry: entry[0], default=(0, 0))[1]

    def wait_until(self, holds: Callable[[], bool], timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, self.told()
            assert any(node.poll() is None for node in self.started), self.told()
            time.sleep(0.1)

    def told(self) -> str:
        return "\n".join(self.log(number).read_text()[-3000:] for number in range(len(self.started)))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    started = Nodes(tmp_path)
    yield started
    for node in started.started:
        if node.poll() is None:
            node.kill()
        node.wait()


def check_each_sample_once(nodes: Nodes, *world_sizes: int) -> None:
    """What each attempt trained before the checkpoint that the next one went on from is one whole epoch."""
    seen = nodes.seen()
    attempts = sorted({attempt for attempt, *_ in seen})
    assert [{size for a, size, *_ in seen if a == attempt} for attempt in attempts][-len(world_sizes) :] == [
        {size} for size in world_sizes
    ], nodes.told()
    starts = [min(step for a, _, step, *_ in seen if a == attempt) for attempt in attempts]
    assert starts[-1] > 0
    assert all(start % EVERY == 0 for start in starts)
    ends = dict(zip(attempts, [*starts[1:], SAMPLES]))
    kept = [number for attempt, _, step, numbers, _ in seen if step < ends[attempt] for number in numbers]
    assert sorted(kept) == list(range(SAMPLES))
    # Nets answer alike before a step that an attempt ended in or after and the next one began with.
    for before, attempt, start in zip(attempts, attempts[1:], starts[1:]):
        answers = [answer for a, _, step, _, answer in seen if a in (before, attempt) and step == start]
        assert answers == pytest.approx([answers[0]] * len(answers), abs=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "ddp_fully_sharded"])
def test_when_a_launcher_is_killed_the_other_goes_on_alone(nodes: Nodes, strategy: str) -> None:
    stays = nodes.start(
        "--num-nodes", "1:2", "--max-restarts", "2", "--node-rank", "0", "--strategy", strategy
    )
    goes = nodes.start(
        "--num-nodes", "1:2", "--max-restarts", "2", "--node-rank", "1", "--strategy", strategy
    )
    nodes.wait_until(lambda: any(size == 2 and step > EVERY for _, size, step, *_ in nodes.seen()))
    goes.send_signal(signal.SIGKILL)
    nodes.wait_until(lambda: nodes.seen_last() == 1)
    nodes.go()
    assert stays.wait(180) == 0, nodes.told()
    check_each_sample_once(nodes, 2, 1)


def test_the_global_batch_stays_while_launchers_go_and_join(nodes: Nodes) -> None:
    """Two ranks, then one, then two: each step has the samples that it has in one process, and its numbers."""
    flags = ("--num-nodes", "1:2", "--max-restarts", "2", "--global-batch-size", "8")
    stays = nodes.start(*flags, "--node-rank", "0")
    goes = nodes.start(*flags, "--node-rank", "1")
    nodes.wait_until(lambda: any(size == 2 and step > EVERY for _, size, step, *_ in nodes.seen()))
    goes.send_signal(signal.SIGKILL)
    nodes.wait_until(lambda: nodes.seen_last() == 1)
    comes = nodes.start(*flags, "--node-rank", "1")
    nodes.wait_until(lambda: nodes.seen_last() == 2)
    nodes.go()
    assert stays.wait(180) == 0, nodes.told()
    assert comes.wait(60) == 0, nodes.told()
    check_each_sample_once(nodes, 2, 1, 2)
    elastic = last_tries(nodes)
    for path in nodes.folder.glob("seen.*"):
        path.unlink()
    assert nodes.start("--global-batch-size", "8", "--run-dir", "alone").wait(60) == 0, nodes.told()
    alone = last_tries(nodes)
    assert sorted(alone) == list(range(SAMPLES // 8))
    assert {step: numbers for step, (numbers, _) in elastic.items()} == {s: n for s, (n, _) in alone.items()}
    for step, (_, answer) in alone.items():
        assert elastic[step][1] == pytest.approx(answer, abs=1e-6), step


def last_tries(nodes: Nodes) -> dict[int, tuple[list[int], float]]:
    """Step → the samples that all ranks trained on in the last attempt at it, and what the net said before."""
    latest: dict[int, int] = {}
    for attempt, _, step, *_ in nodes.seen():
        latest[step] = max(attempt, latest.get(step, 0))
    tries: dict[int, tuple[list[int], float]] = {}
    for attempt, _, step, numbers, answer in nodes.seen():
        if attempt == latest[step]:
            tries[step] = (sorted(tries.get(step, ([], 0.0))[0] + numbers), answer)
    return tries


@pytest.mark.parametrize(
    "strategy",
    [
        "ddp",
        "diloco",
        pytest.param("fsdp", marks=pytest.mark.soak),
        pytest.param("ddp_sharded", marks=pytest.mark.soak),
    ],
)
def test_when_a_launcher_joins_both_go_on_together(nodes: Nodes, strategy: str) -> None:
    flags = ("--num-nodes", "1:2", "--max-restarts", "0", "--strategy", strategy)
    first = nodes.start(*flags)
    nodes.wait_until(lambda: any(step > EVERY for _, _, step, *_ in nodes.seen()))
    second = nodes.start(*flags)
    nodes.wait_until(lambda: nodes.seen_last() == 2)
    nodes.go()
    assert first.wait(180) == 0, nodes.told()
    assert second.wait(60) == 0, nodes.told()
    check_each_sample_once(nodes, 1, 2)


def test_a_worker_that_is_killed_comes_back_and_goes_on_from_the_newest_checkpoint(nodes: Nodes) -> None:
    node = nodes.start("--max-restarts", "1", "--devices", "2")
    nodes.wait_until(lambda: any(step > EVERY for _, _, step, *_ in nodes.seen()))
    first = {int(path.suffix[1:]) for path in nodes.folder.glob("seen.*")}
    os.kill(min(first), signal.SIGKILL)
    nodes.go()
    assert node.wait(120) == 0, nodes.told()
    check_each_sample_once(nodes, 2, 2)
    assert (nodes.folder / "run" / "checkpoints" / "last").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num-nodes", "3:2"], "its least after its most"),
        (["--num-nodes", "0:2"], "at least 1 must take part"),
        (["--num-nodes", "1:two"], "is no number of machines"),
        (["--num-nodes", "0"], "at least 1 must take part"),
        (["--num-nodes", "1:2", "--strategy", "ddp"], "2 nodes need a place to meet"),
        (
            ["--num-nodes", "1:2", "--strategy", "ddp2"],
            "a number of nodes that changes while it runs",
        ),
        (["--num-nodes", "1:2", "--strategy", "ddp", "--rdzv-conf", "soon"], "write KEY=VALUE"),
    ],
)
def test_bad_numbers_of_nodes_end_with_a_sentence_and_code_2(
    tmp_path: Path, flags: list[str], words: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratagem_cli.main import main

    (tmp_path / "net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    command = [
        "fit",
        "net.py:Net",
        "--accelerator",
        "cpu",
        "--devices",
        "1",
        "--set",
        "model.folder=.",
        *flags,
    ]
    monkeypatch.setattr(sys, "argv", ["stratagem", *command])
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main())
    assert ended.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())
