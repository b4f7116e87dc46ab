"""Describes how workers ended that recorded no exception."""

from __future__ import annotations

import signal
import socket
from dataclasses import replace

from stratagem_launch.launch_dir import Failure, WorkerEvent


def without_exception(rank: int, attempt: int, when: float, line: str) -> Failure:
    """Describe a worker that left no record of an exception."""
    return Failure(rank, attempt, socket.gethostname(), when, line, traceback="", raised=False)


def left_early(mark: WorkerEvent) -> Failure:
    """Describe a worker that ended with exit code 0 before the run was over."""
    call = "sys.exit(0)" if mark.event == "left" else "os._exit(0)"
    return without_exception(mark.rank, mark.attempt, mark.time, f"left by {call} before the run was over")


def unexplained(rank: int, attempt: int, code: int | None, ended: float) -> Failure:
    """Describe a worker that ended without a mark: by a signal, or because a library exited.

    Args:
        code: its exit code, negative for a signal; None if unknown.
    """
    if code is not None and code < 0:
        names = {number.value: number.name for number in signal.Signals}
        line = f"was ended by {names.get(-code, f'signal {-code}')}"
    elif code is not None:
        line = f"exited with code {code} and no exception"
    else:
        line = "ended without an exception before the run was over"
    return without_exception(rank, attempt, ended, line)


def with_what_followed(first: Failure, recorded: dict[int, Failure]) -> Failure:
    """Add the first exception of another rank, with its traceback, to a failure that has none."""
    later = [failure for rank, failure in recorded.items() if rank != first.rank]
    if first.raised or not later:
        return first
    next_one = min(later, key=lambda failure: failure.time)
    line = f"{first.line}; then rank {next_one.rank} failed: {next_one.line}"
    return replace(first, line=line, traceback=next_one.traceback)
