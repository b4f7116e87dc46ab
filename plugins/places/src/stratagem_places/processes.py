"""Processes of a run on this machine, distinguished from later ones that have the same number."""

from __future__ import annotations

import os
import subprocess
import sys


def started_at(pid: int) -> str | None:
    """Return when a process began, in a form that only serves to be compared; None where it is gone.

    A process is identified by its number and this text together: numbers are given out again.
    """
    if sys.platform == "linux":
        return _started_on_linux(pid)
    fields = _ps(pid, "stat=,lstart=").split(maxsplit=1)
    return fields[1] if len(fields) == 2 and not fields[0].startswith("Z") else None


def is_process(pid: int, started: str) -> bool:
    """Whether process `pid` is the one that began then, and still runs."""
    return pid > 1 and bool(started) and started_at(pid) == started


def parent_of(pid: int) -> int | None:
    """Return the number of a process's parent; None where it is gone."""
    text = _ps(pid, "ppid=").strip()
    return int(text) if text.isdecimal() else None


def _started_on_linux(pid: int) -> str | None:
    # `ps -o lstart` is computed from the clock, and may differ by a second from one call to the next.
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else f"{boot} {fields[19]}"


def _ps(pid: int, columns: str) -> str:
    asked = ["ps", "-ww", "-p", str(pid), "-o", columns]
    return subprocess.run(
        asked, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    ).stdout
