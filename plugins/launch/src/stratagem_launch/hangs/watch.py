"""`HangWatch`: the launching process watches its workers' heartbeats."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Collection
from dataclasses import replace

from stratagem_launch.guard import is_stopped
from stratagem_launch.hangs.evidence import Evidence, read_collectives, read_stacks, size_of
from stratagem_launch.hangs.files import Beat, beats_in, write_whole
from stratagem_launch.hangs.heartbeat import DUMP_SIGNAL
from stratagem_launch.hangs.report import report_hang
from stratagem_launch.hangs.verdict import Verdict, different_calls

_LOOK_S = 0.25
_ANSWER_S = 1.5
"""How long ranks may take to write their evidence."""


class HangWatch:
    """Watches the heartbeats of one launch's workers. Call it often, from one thread.

    Args:
        folder: the launch's folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._looked = 0.0
        self._seen: dict[int, tuple[int, float]] = {}
        """Process → its number of beats, and since when that hasn't changed."""

    def look(self, alive: Collection[int]) -> Verdict | None:
        """Return the diagnosis of a hang if a rank's heartbeat has timed out, else None.

        Args:
            alive: ids of the processes that haven't ended.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return None
        self._looked = now
        beats = [beat for beat in beats_in(self._folder) if beat.files.pid in alive]
        for beat in beats:
            count, pid = beat.count(), beat.files.pid
            if pid not in self._seen or self._seen[pid][0] != count:
                self._seen[pid] = count, now
        silent = [beat for beat in beats if now - self._seen[beat.files.pid][1] > beat.timeout_s]
        return self._judge(beats) if silent else None

    def ask(self, pids: Collection[int]) -> None:
        """Ask these processes to write their collectives. A thread does so even if the main thread waits."""
        for beat in beats_in(self._folder):
            if beat.files.pid in pids and not os.path.exists(beat.files.request):
                write_whole(beat.files.request, b"")

    def mismatch(self, pids: Collection[int]) -> tuple[int, str] | None:
        """Return the rank whose collective differed from most ranks', and the message; None if none differed.

        For ranks that an error or an abort has ended or is about to end.

        Args:
            pids: process ids of these ranks.
        """
        beats = [beat for beat in beats_in(self._folder) if beat.files.pid in pids]
        evidence = [
            replace(
                Evidence(beat.rank, beat.host, beat.count(), 0.0),
                stack=next(iter(read_stacks(beat.files.stacks)), ()),
                collectives=read_collectives(beat.files.collectives),
            )
            for beat in beats
        ]
        found = different_calls(evidence)
        return (found[0][0].rank, found[1]) if found else None

    def _judge(self, beats: list[Beat]) -> Verdict:
        now = time.monotonic()
        self.ask({beat.files.pid for beat in beats})
        seen = {}
        for beat in beats:
            count, since = self._seen[beat.files.pid]
            stopped = is_stopped(beat.files.pid)
            seen[beat.rank] = Evidence(beat.rank, beat.host, count, now - since, stopped)
            _ask(beat.files.pid)
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline and not all(_has_answered(beat) for beat in beats):
            time.sleep(0.02)
        for beat in beats:
            seen[beat.rank] = _with_stacks(beat, seen[beat.rank])
        verdict = report_hang(beats, beats[0].timeout_s, seen)
        self._seen.clear()
        return verdict


def _ask(pid: int) -> None:
    """Make a process write its stacks. A process that a signal has stopped is continued for that."""
    with contextlib.suppress(ProcessLookupError):
        if DUMP_SIGNAL is not None:
            os.kill(pid, DUMP_SIGNAL)
            if is_stopped(pid):
                os.kill(pid, signal.SIGCONT)


def _has_answered(beat: Beat) -> bool:
    return size_of(beat.files.stacks) > 0 and os.path.exists(beat.files.collectives)


def _with_stacks(beat: Beat, evidence: Evidence) -> Evidence:
    stacks = read_stacks(beat.files.stacks)
    evidence = replace(evidence, stack=stacks[0] if stacks else ())
    if not evidence.waits_for_loader:
        return evidence
    # Forked loader workers have inherited the dump signal's handler, and write to the same file.
    start = size_of(beat.files.stacks)
    for child in _children(beat.files.pid):
        _ask(child)
    time.sleep(0.1)
    stacks = [stack for stack in read_stacks(beat.files.stacks, start) if stack]
    with_user = [stack for stack in stacks if any(frame.is_of_user for frame in stack)]
    return replace(evidence, loader_stack=(with_user or [()])[0])


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]
    return []


def say(verdict: Verdict) -> None:
    """Print the diagnosis at once, because the run may continue."""
    print(f"  hang on {socket.gethostname()}: {verdict.sentence}", file=sys.stderr, flush=True)
