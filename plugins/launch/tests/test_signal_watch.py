"""Signals that end a process are noticed, whichever code handles them, and an event loop still hears of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from stratagem_launch.launch_dir import LaunchDir
from stratagem_launch.signal_watch import signal_watch
from stratagem_launch.supervision import GRACE_S, Supervision


@pytest.fixture(autouse=True)
def handled() -> Iterator[list[int]]:
    """Another library's handlers."""
    came: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, lambda got, frame: came.append(got)) for number in numbers}
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


def test_notices_what_another_handles(handled: list[int]) -> None:
    with signal_watch() as has_come:
        assert not has_come()
        signal.raise_signal(signal.SIGUSR1)
        assert not has_come()  # it ends nothing here
        signal.raise_signal(signal.SIGTERM)
        assert has_come()
        assert not has_come()
    assert handled == [signal.SIGUSR1, signal.SIGTERM]
    assert signal.set_wakeup_fd(-1) == -1


def test_an_event_loop_hears_of_them() -> None:
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writing)
    try:
        with signal_watch():
            signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        assert os.read(reading, 10) == bytes([signal.SIGUSR1, signal.SIGTERM])
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)


def test_other_threads_notice_none() -> None:
    reported: list[bool] = []

    def watch() -> None:
        with signal_watch() as has_come:
            reported.append(has_come())

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join(120)
    assert reported == [False]


def test_workers_that_ignore_the_signal_are_ended_before_the_agent_would() -> None:
    launch_dir = LaunchDir.create()
    source = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        launch_dir.put(f"mark.started.0.0.{worker.pid}", b"")  # as it would note its start itself
        try:
            with signal_watch() as has_come, Supervision(launch_dir, has_come):
                time.sleep(GRACE_S + 0.5)
                assert worker.poll() is None
                worker.terminate()
                signal.raise_signal(signal.SIGTERM)
                assert worker.wait(120) == -signal.SIGKILL
        finally:
            worker.kill()
            launch_dir.remove()
