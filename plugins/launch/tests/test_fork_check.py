"""A forked child hangs or not by what its threads do, however long it takes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest
from stratagem_launch import fork_check
from stratagem_launch.fork_check import _ends

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def forked(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def test_a_child_that_is_slow_is_waited_for() -> None:
    """It stands still for longer than a child that hangs is watched, and neither sleeps nor uses time."""
    pid = forked(lambda: time.sleep(0.3))
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(3 * fork_check._ASLEEP_S, os.kill, (pid, signal.SIGCONT)).start()
    assert _ends(pid)


@pytest.mark.parametrize("hangs", ["asleep", "spinning"])
def test_a_child_that_hangs_is_found(hangs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_check, "_SPINS_NS", 300_000_000)

    def wait() -> None:
        while hangs == "spinning":
            pass
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    pid = forked(wait)
    try:
        assert not _ends(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
