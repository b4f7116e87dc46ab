"""Signals to a launch: to workers that obey them, or else the launch ends with the signal's exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stratagem_launch import ElasticLauncher
from stratagem_launch.launch_dir import LaunchDir
from stratagem_launch.preemption import NOTE
from stratagem_launch.stop_signals import stop_signals
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.launcher import api

from stratagem import LaunchPlan, Task
from stratagem.errors import WorkerError

WORKER = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
sys.exit(signal.sigwait([signal.SIGTERM]))
"""


@pytest.fixture
def launch_dir() -> Iterator[LaunchDir]:
    made = LaunchDir.create()
    yield made
    made.remove()


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    """Signals that this process ignores, as under nohup, would stay ignored."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_without_workers_that_obey_the_launch_ends(launch_dir: LaunchDir, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, stop_signals(launch_dir) as request:
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert request.number is None
    assert signal.getsignal(number) is before


def test_workers_that_obey_get_the_signal_and_their_grace_period(launch_dir: LaunchDir) -> None:
    number = signal.SIGTERM
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        note = {"signals": [int(number)], "grace_period_s": 600.0}
        launch_dir.put(f"{NOTE}.0.{worker.pid}", json.dumps(note).encode())
        with stop_signals(launch_dir) as request:
            signal.raise_signal(number)
            assert (request.number, request.name, request.grace_period_s) == (number, "SIGTERM", 600.0)
            assert not request.is_over
            assert worker.wait(120) == number
            # Nothing can be saved any more: the next one ends the launch, with the code of the first.
            request.is_forced = True
            with pytest.raises(SystemExit) as ended:
                signal.raise_signal(signal.SIGHUP)
            assert ended.value.code == 128 + number
    assert os.listdir(launch_dir.path) == [f"{NOTE}.0.{worker.pid}"]


def ends_by(end: Callable[[str], None]) -> Callable[..., Any]:
    """Stands for torch's elastic agent: calls `end` with the launch's folder instead of starting workers."""
    return lambda config, entrypoint: lambda folder, *arguments: end(folder)


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143)],
)
def test_a_signal_that_the_agent_reports_ends_the_launch(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, kind: type[BaseException], code: int | None
) -> None:
    def end(folder: str) -> None:
        raise SignalException("as torch 2.9 does for each of its signals", number)

    monkeypatch.setattr(api, "elastic_launch", ends_by(end))
    with pytest.raises(kind) as ended:
        ElasticLauncher(LaunchPlan(1)).launch(Task(str))
    assert getattr(ended.value, "code", None) == code


def test_a_launch_that_could_not_save_has_the_exit_code_of_its_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(folder: str) -> None:
        with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
            note = {"signals": [int(signal.SIGTERM)], "grace_period_s": 600.0}
            Path(folder, f"{NOTE}.0.{worker.pid}").write_text(json.dumps(note))
            signal.raise_signal(signal.SIGTERM)
            worker.wait(120)
        raise SystemExit(1)

    monkeypatch.setattr(api, "elastic_launch", ends_by(end))
    with pytest.raises(
        WorkerError, match="SIGTERM asked this run to stop, and its ranks didn't save"
    ) as ended:
        ElasticLauncher(LaunchPlan(1)).launch(Task(str))
    assert ended.value.exit_code == 143
