"""Check whether this process may still be forked. Its earlier computations can make forked children hang.
Autograd's and OpenMP's threads don't exist in a forked child (pytorch/pytorch#2245, pytorch/pytorch#17199).
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from stratagem.errors import UsageError

_INSTEAD = 'start the workers before anything is computed, or use start_method="forkserver"'
_ASLEEP_S = 1.0
"""A child hangs if all its threads have been asleep for so long, and none has run in that time."""
_SPINS_NS = 5_000_000_000
"""A child that has used so much CPU time hangs by spinning; the computation takes a few milliseconds."""
_TICK_NS = 10_000_000
"""Linux reports CPU times in hundredths of a second, whatever the kernel's tick is."""
_WITHOUT_PROC_S = 30.0
"""How long a child may take if the system doesn't report the state of its threads."""
_PROBE_ELEMENTS = 1 << 17


def require_forkable(threads: int) -> None:
    """Refuse to fork a process whose children could not compute.

    Args:
        threads: number of torch threads that each child is going to use.

    Raises:
        UsageError: this process has initialised a device or has autograd threads, or a forked test child hung in a
            small computation.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    device = _initialised_device(torch)
    if device:
        raise UsageError(
            f'start_method="fork" can\'t be used after {device} has been initialised in the launching '
            f"process: {_INSTEAD}"
        )
    if _has_autograd_threads():
        raise UsageError(
            'start_method="fork" can\'t be used after autograd has started threads in the launching '
            f"process (a backward has run): {_INSTEAD}"
        )
    if not _child_computes(torch, threads):
        raise UsageError(
            'start_method="fork" can\'t be used after torch has started its compute threads in the launching '
            f"process, such as by a large matrix product or a backward: {_INSTEAD}"
        )


def _initialised_device(torch: Any) -> str | None:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return None
    is_initialized = getattr(torch.get_device_module(accelerator), "is_initialized", None)
    return accelerator.type if is_initialized is not None and is_initialized() else None


def _has_autograd_threads() -> bool:
    threads = Path("/proc/self/task").glob("*/comm")
    return any(thread.read_text().startswith("pt_autograd") for thread in threads)


def _child_computes(torch: Any, threads: int) -> bool:
    """Fork a test child and run a small computation in it. Nothing else shows that OpenMP's threads would hang it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, on forking with threads
        pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(threads)
            torch.ones(_PROBE_ELEMENTS).add_(1)
        finally:
            os._exit(0)
    if _ends(pid):
        return True
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _ends(pid: int) -> bool:
    """Wait for a child's end; return False as soon as it is known to hang.

    On a busy machine a computing child may take any time, so a deadline can't tell it from a hanging one. Its threads
    can: a thread with work is runnable or gets CPU time. In a hanging child all threads sleep, each waiting for a
    thread that wasn't forked. With OMP_WAIT_POLICY=active they spin for ever instead, and use more CPU time than the
    computation ever does.
    """
    before, asleep_since, began = None, time.monotonic(), time.monotonic()
    while not os.waitpid(pid, os.WNOHANG)[0]:
        now = time.monotonic()
        threads = _threads_of(pid)
        if threads is None:  # no /proc, or the child has just ended
            if now - began > _WITHOUT_PROC_S:
                return False
        else:
            if threads != before or not all(thread.state == "S" for thread in threads):
                asleep_since = now
            if now - asleep_since > _ASLEEP_S or sum(thread.ran_ns for thread in threads) > _SPINS_NS:
                return False
        before = threads
        time.sleep(0.002 if now - began < 0.1 else 0.02)
    return True


class _Thread(NamedTuple):
    """The scheduler's data about a thread."""

    id: int
    state: str
    """State as in /proc: "S" waits for something, "R" runs or waits for a processor."""
    ran_ns: int
    turns: int
    """Number of times that it was scheduled."""


def _threads_of(pid: int) -> list[_Thread] | None:
    """Return a process's threads; None if /proc doesn't list them."""
    folder = f"/proc/{pid}/task"
    found = []
    try:
        for thread in sorted(map(int, os.listdir(folder))):
            with open(f"{folder}/{thread}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            try:
                with open(f"{folder}/{thread}/schedstat", encoding="ascii") as file:
                    ran_ns, _, turns = map(int, file.read().split())
            except FileNotFoundError:  # a kernel, or a sandbox, that counts ticks alone
                ran_ns, turns = sum(map(int, fields[11:13])) * _TICK_NS, 0
            found.append(_Thread(thread, fields[0], ran_ns, turns))
    except (OSError, ValueError, IndexError):
        return None
    return found or None
