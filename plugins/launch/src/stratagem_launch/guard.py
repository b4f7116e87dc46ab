"""No orphans: a worker ends when its launching process ends, whatever ended that."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5
SAVED_FROM = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU") if hasattr(signal, name)
)
"""Signals that a fork server ignores but its workers obey."""


@contextlib.contextmanager
def stop_signals_ignored() -> Iterator[None]:
    """Let processes started within this context ignore the signals in `SAVED_FROM`. Only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SAVED_FROM}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def die_with_parent() -> None:
    """Let the kernel end this process by SIGKILL when the thread that started it ends.

    Nothing happens on systems other than Linux; `die_with` covers those.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def set_pdeathsig_in_children() -> None:
    """Make each process that this one forks from its main thread end together with this one.

    Covers a data loader's worker processes, which would otherwise notice the end only seconds later.
    Forks from other threads are left alone, since the kernel would end those children with the thread.
    """
    from_main_thread = False

    def before() -> None:
        nonlocal from_main_thread
        from_main_thread = threading.current_thread() is threading.main_thread()

    def after_in_child() -> None:
        if from_main_thread:
            die_with_parent()

    os.register_at_fork(before=before, after_in_child=after_in_child)


def die_with(pid: int) -> None:
    """End this process by SIGKILL as soon as process `pid` is gone.

    A daemon thread waits for it. Use this if `pid` isn't the parent, as with a fork server.
    """
    try:
        gone = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        _end_now()
    except OSError:  # a kernel or a sandbox without pidfd_open
        gone = None
    threading.Thread(target=_wait_and_end, args=(pid, gone), name="stratagem-guard", daemon=True).start()


def _wait_and_end(pid: int, gone: int | None) -> None:
    if gone is not None:
        waiting = select.poll()
        waiting.register(gone, select.POLLIN)
        waiting.poll()
    else:
        while is_alive(pid):
            time.sleep(_POLL_S)
    _end_now()


def _end_now() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Return whether a process of this id exists, also as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_stopped(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP has stopped a process; False if /proc doesn't say."""
    return _state(pid) == "T"


def can_answer(pid: int) -> bool:
    """Return whether a process exists and is neither a zombie nor stopped."""
    return is_alive(pid) and _state(pid) not in ("T", "Z", "X")


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
