"""Whole runs of the command line: interrupted, killed, continued, and over two nodes."""

from __future__ import annotations

import csv
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

ENDLESS = ("--max-epochs", "1000")
"""Nothing but what a test does ends such a run."""
SUPPORT = Path(__file__).parents[1] / "support"


def start(*words: str, devices: int = 2) -> subprocess.Popen[str]:
    command = [
        *(sys.executable, "-m", "stratagem", "fit", *words),
        *("--strategy", "ddp", "--accelerator", "cpu", "--devices", str(devices)),
    ]
    return subprocess.Popen(
        command,
        cwd=SUPPORT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def slow(folder: Path, *words: str) -> subprocess.Popen[str]:
    return start("slow:Slow", "--set", f"model.folder={folder}", "--run-dir", str(folder / "run"), *words)


def ranks_in(folder: Path) -> list[int]:
    """Process ids of both ranks, once they train."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        notes = [folder / "rank0", folder / "rank1"]
        if all(note.exists() and note.read_text() for note in notes):
            return [int(note.read_text()) for note in notes]
        time.sleep(0.05)
    pytest.fail("the ranks didn't begin to train")


def assert_gone(processes: list[psutil.Process]) -> None:
    """Expect that these end; they would train on for longer than that."""
    deadline = time.monotonic() + 120
    while alive := [process for process in processes if runs(process)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)


def runs(process: psutil.Process) -> bool:
    """Whether it still runs: one that has ended stays a zombie until the system's first process looks."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.serial
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 75), (signal.SIGINT, 130)]
)
def test_a_run_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = slow(tmp_path, *ENDLESS)
    ranks_in(tmp_path)
    everyone = psutil.Process(process.pid).children(recursive=True)
    assert len(everyone) >= 2
    process.send_signal(number)
    assert process.wait(timeout=120) == code
    assert_gone(everyone)
    process.communicate()


@pytest.mark.serial
def test_a_killed_rank_ends_the_run_and_is_named(tmp_path: Path) -> None:
    process = slow(tmp_path, *ENDLESS)
    victim = ranks_in(tmp_path)[1]
    everyone = psutil.Process(process.pid).children(recursive=True)
    psutil.Process(victim).kill()
    _, errors = process.communicate(timeout=200)
    assert process.returncode not in (0, 2)
    assert "rank 1 on" in errors
    assert "SIGKILL" in errors
    assert_gone(everyone)


def logged(run_dir: Path) -> list[tuple[str, str]]:
    with (run_dir / "metrics.csv").open() as lines:
        return [(row["step"], row["loss"]) for row in csv.DictReader(lines)]


@pytest.mark.long
def test_a_run_that_was_killed_goes_on_with_the_very_next_sample(tmp_path: Path) -> None:
    often = ("--set", "trainer.log_every_n_steps=1", "--set", "model.count=96", "--max-steps", "20")
    pace = ("--set", "model.pause_s=0.02")
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    config = tmp_path / "often.yaml"
    config.write_text(
        "trainer:\n  callbacks:\n"
        "  - class_path: stratagem.ModelCheckpoint\n    init_args: {every_n_train_steps: 3, save_top_k: 2}\n"
    )
    whole = slow(tmp_path / "whole", *often, *pace, "--config", str(config))
    assert whole.wait(timeout=240) == 0, whole.stderr and whole.stderr.read()
    whole.communicate()
    run = tmp_path / "killed" / "run"
    killed = slow(tmp_path / "killed", *often, "--set", "model.pause_s=0.2", "--config", str(config))
    deadline = time.monotonic() + 200
    while not (run / "checkpoints" / "last").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    words = (*often, *pace, "--config", str(config), "--ckpt-path", str(run / "checkpoints" / "last"))
    continued = slow(tmp_path / "killed", *words)
    _, errors = continued.communicate(timeout=240)
    assert continued.returncode == 0, errors
    assert logged(run) == logged(tmp_path / "whole" / "run")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.long
def test_two_nodes_on_one_machine(tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    words: list[Any] = ["parity:Net", "--num-nodes", "2", "--rdzv-endpoint", endpoint, "--max-steps", "20"]
    words += ["--seed", "7", "--set", "model.batch_size=16", "--set", "trainer.log_every_n_steps=20"]
    words += ["--set", "trainer.limit_val_batches=0", "--run-dir", str(tmp_path / "run")]
    nodes = [start(*words, "--node-rank", str(rank), devices=1) for rank in (0, 1)]
    outputs = [node.communicate(timeout=240) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert "2 on 2 nodes" in outputs[0][1]
    from parity import plain_training

    _, losses = plain_training(20, 32, seed=7)
    ((step, loss),) = logged(tmp_path / "run")
    assert step == "20"
    # Rank 0's own half of the batch is logged without sync_dist; Net logs with it.
    assert float(loss) == pytest.approx(losses[-1], abs=1e-6)
