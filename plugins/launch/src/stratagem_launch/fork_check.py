"""Whether this process may still be forked: what it has computed can make its children hang."""

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
"""For how long all threads of a child that hangs are seen asleep, none of which has had a turn meanwhile."""
_SPINS_NS = 5_000_000_000
"""Processor time of a child that hangs by spinning; the computation takes some milliseconds."""
_TICK_NS = 10_000_000
"""Linux shows times in hundredths of a second, whatever its own ticks are."""
_WITHOUT_PROC_S = 30.0
"""How long a child may take if the system doesn't report what its threads do."""
_PROBE_ELEMENTS = 1 << 17


def require_forkable(threads: int) -> None:
    """Refuse to fork a process whose children could not compute.

    Args:
        threads: how many torch threads each child is going to use.

    Raises:
        UsageError: this process has initialised a device, has threads of autograd, or a child that
            was forked to try it hung in a small computation.
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
    """Fork once and compute a little: OpenMP's threads leave no other sign, and hang in a child."""
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
    """Wait for a child's end; False as soon as it is known to hang.

    On a busy machine a child that computes may take any time, so no deadline distinguishes it from one that hangs.
    Its threads do: one that has work is runnable or gets time from the scheduler, whereas those of a child that hangs
    all sleep, each waiting for a thread that wasn't forked. With OMP_WAIT_POLICY=active they spin for ever instead,
    and use more time than the computation ever does.
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
    """What the scheduler knows of a thread."""

    id: int
    state: str
    """State as in /proc: "S" waits for something, "R" runs or waits for a processor."""
    ran_ns: int
    turns: int
    """How often it was given a processor."""


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
