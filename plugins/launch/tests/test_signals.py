"""Whatever ends the launching process ends all workers within 5 s, and what those had forked."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from stratagem_launch.elastic import ElasticLauncher

from stratagem import LaunchPlan, Task

pytestmark = pytest.mark.serial

PROGRAM = """
import sys
import launch_tasks
from stratagem import LaunchPlan, Task
from stratagem_launch.elastic import ElasticLauncher

if __name__ == "__main__":
    method, task, folder = sys.argv[1:]
    ElasticLauncher(LaunchPlan(2, start_method=method)).launch(Task(getattr(launch_tasks, task), (folder,)))
"""


def begin(
    start_program: Any, method: str, task: str, folder: Path
) -> tuple[subprocess.Popen[str], list[int]]:
    """Start the program, wait until both workers run, and return all processes below it."""
    program = start_program(PROGRAM, method, task, str(folder))
    deadline = time.monotonic() + 200
    while not all((folder / f"pid.{rank}").exists() for rank in (0, 1)):
        assert program.poll() is None, program.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)
    below = [child.pid for child in psutil.Process(program.pid).children(recursive=True)]
    assert all(int(path.read_text()) in below for path in folder.glob("pid.*"))
    return program, below


@pytest.mark.parametrize(
    ("method", "task"),
    [
        ("forkserver", "wait_with_loader"),
        ("forkserver", "wait_with_served_loader"),
        ("spawn", "wait_with_loader"),
        ("popen", "wait_with_loader"),
        ("fork", "wait_with_loader"),
    ],
)
def test_kill_9(
    method: str, task: str, start_program: Any, tmp_path: Path, all_end: Callable[..., bool]
) -> None:
    program, below = begin(start_program, method, task, tmp_path)
    loaders = [int(path.read_text()) for path in tmp_path.glob("loader.*")]
    assert len(loaders) == 2
    assert set(loaders) <= set(below)
    program.kill()
    assert all_end(below), [psutil.Process(pid) for pid in below if psutil.pid_exists(pid)]


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("forkserver", signal.SIGTERM),
        ("forkserver", signal.SIGINT),
        ("popen", signal.SIGTERM),
        ("fork", signal.SIGINT),
    ],
)
def test_ending_signal(
    method: str, number: signal.Signals, start_program: Any, tmp_path: Path, all_end: Callable[..., bool]
) -> None:
    program, below = begin(start_program, method, "ignore_sigterm_and_wait", tmp_path)
    program.send_signal(number)
    _, err = program.communicate(timeout=200)
    assert all_end(below)
    if number == signal.SIGTERM:
        assert (program.returncode, err) == (143, "")
    else:
        assert program.returncode == -signal.SIGINT
        assert err.splitlines()[-1].startswith("KeyboardInterrupt")
    assert list(tmp_path.glob("stratagem-*")) == []
    assert list(tmp_path.glob("torchelastic*")) == []


def test_what_a_killed_launch_leaves_is_removed_by_the_next_but_nothing_of_a_living_one(
    start_program: Any, tmp_path: Path, all_end: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, below = begin(start_program, "popen", "ignore_sigterm_and_wait", tmp_path)
    killed.kill()
    assert all_end(below)
    (left,) = tmp_path.glob("stratagem-*")
    for path in tmp_path.glob("pid.*"):
        path.unlink()
    begin(start_program, "fork", "ignore_sigterm_and_wait", tmp_path)
    (living,) = tmp_path.glob("stratagem-*")
    assert living != left
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert ElasticLauncher(LaunchPlan(1, start_method="popen")).launch(Task(max, (3, 4))) == 4
    assert list(tmp_path.glob("stratagem-*")) == [living]
