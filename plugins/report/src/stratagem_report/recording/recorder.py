"""`Recorder`: writes one rank's record into the run's folder during the run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from stratagem_report.files import FORMAT, record_path
from stratagem_report.phases import END, PHASES, START
from stratagem_report.recording.clock import PhaseClock, TimedClock
from stratagem_report.recording.writer import Writer

if TYPE_CHECKING:
    from stratagem_report.recording.device import DeviceTimes
    from stratagem_report.recording.stragglers import StragglerWatch

FLUSH_NS = 1_000_000_000
"""Minimum time between two writes to the file. A killed process loses at most this much of its record."""
ROWS_PER_STRIDE = 4096
"""After so many rows, the number of steps per row doubles: a record grows with the logarithm of the run's length."""


class Recorder:
    """Divides this rank's time into phases, step by step.

    Before `open` it counts, but keeps nothing.

    Args:
        world_size: number of ranks.
        began_ns: `perf_counter_ns` at the beginning of this rank's part of the run.
        memory: returns the bytes in use on the device, by name.
        device: measures the device's time for each phase; None if the host's times are the device's.
    """

    def __init__(
        self,
        world_size: int,
        began_ns: int,
        memory: Callable[[], Mapping[str, int]],
        device: DeviceTimes | None = None,
    ) -> None:
        self.world_size = world_size
        self.clock = PhaseClock(began_ns) if device is None else TimedClock(began_ns, device)
        self.stepped = False
        """Whether an optimizer has stepped since the last row."""
        self.samples = 0
        self.steps = 0
        """Number of finished optimizer steps."""
        self.watch: StragglerWatch | None = None
        self._began_ns, self._memory, self._device = began_ns, memory, device
        self._writer: Writer | None = None
        self._reads_loader = False
        self._thread = get_ident()
        self._steps: list[tuple[int, ...]] = []
        self._lines: list[str] = []
        self._stride = self._memory_stride = 1
        self._rows = self._flushes = 0
        self._flushed_ns = began_ns

    @property
    def is_open(self) -> bool:
        """Whether counts are written to a file."""
        return self._writer is not None

    def open(self, run_dir: str, attempt: int, rank: int, header: Mapping[str, Any]) -> None:
        """Create the file. Not collective.

        Args:
            run_dir: the run's folder; created if needed.
            attempt: number of this start of the run; the same on all ranks.
            rank: this process's global rank.
            header: JSON values for the file's first line.

        Raises:
            OSError: the file can't be created.
        """
        self._writer = Writer(record_path(run_dir, attempt, rank))
        began = time.time() - (perf_counter_ns() - self._began_ns) / 1e9
        first = {"format": FORMAT, "attempt": attempt, "rank": rank, "began": began, "phases": PHASES}
        self._lines.append(json.dumps({**first, **header}))
        self.flush()

    # Per step -----------------------------------------------------------------------------------

    def before_data(self) -> None:
        """A batch is about to be read: a step that has ended before is recorded."""
        self._reads_loader = True
        if self.stepped or self.clock.phase == START:
            self.end_step()

    def before_forward(self) -> None:
        """A training forward begins. Ends the last step if batches aren't read through the strategy."""
        if self.clock.phase == START or (self.stepped and not self._reads_loader):
            self.end_step()

    def end_step(self) -> None:
        """End a step or the start."""
        clock = self.clock
        if clock.phase == START:
            clock.end_start()
        self._end_row(clock.take())

    def _end_row(self, ns: list[int]) -> None:
        clock = self.clock
        self._steps.append((int(self.stepped), clock.now_ns, self.samples, *ns))
        self.samples = 0
        if self.stepped:
            self.stepped = False
            self.steps += 1
            if self.watch is not None:
                self.watch.after_step(self.steps, ns)
        if clock.now_ns - self._flushed_ns >= FLUSH_NS:
            self.flush()

    @contextmanager
    def timed(self, phase: int) -> Iterator[None]:
        """Count the time inside as `phase`. Does nothing in threads other than the loop's."""
        if get_ident() != self._thread:
            yield
            return
        before = self.clock.enter(phase)
        try:
            yield
        finally:
            self.clock.leave(before)

    # The file -----------------------------------------------------------------------------------

    def event(self, name: str, **what: Any) -> None:
        """Record an event with the number of steps so far in this attempt. It is written at once."""
        self._lines.append(json.dumps({"event": name, "step": self.steps + self.stepped, **what}))
        self.flush()

    def note_slow(self, rank: int, step: int, ratio: float, phase: str) -> None:
        """Record that a rank is slower than the others."""
        self.event("slow", rank=rank, at_step=step, ratio=ratio, phase=phase)

    def flush(self) -> None:
        """Write all rows and events so far, in one write that ends with a newline."""
        self._flushed_ns = self.clock.now_ns
        if self._writer is None:
            # Nothing is recorded: a fit that is recorded opens the file before its first step.
            self._steps.clear()
            return
        steps, self._steps = self._steps, []
        if rows := list(self._merged(steps)):
            self._lines.append(json.dumps({"rows": rows}, separators=(",", ":")))
        if self._device is not None:
            self._add_device(self._device)
        if self._flushes % self._memory_stride == 0:
            at = self.clock.now_ns - self._began_ns
            self._lines.append(json.dumps({"memory": {**host_memory(), **self._memory()}, "at": at}))
            if self._flushes == ROWS_PER_STRIDE * self._memory_stride:
                self._memory_stride *= 2
        self._flushes += 1
        lines, self._lines = self._lines, []
        self._writer.write("".join(f"{line}\n" for line in lines).encode())

    def _add_device(self, device: DeviceTimes) -> None:
        if rows := device.take():
            self._lines.append(json.dumps({"device": rows}, separators=(",", ":")))
        if device.why_not is not None:
            self._device = None
            self._lines.append(json.dumps({"event": "untimed", "step": self.steps, "why": device.why_not}))

    def begin_end(self, failed: bool) -> None:
        """The loop is over: all time since the last change of phase counts as the end.

        Args:
            failed: whether the rank ends with an error. If not, the call is collective.
        """
        if self._writer is None:
            return
        if self.watch is not None:
            watch, self.watch = self.watch, None
            watch.close(failed)
        self._end_row(self.clock.take(until_change=True))
        self.clock.phase = END

    def close(self, end: str) -> None:
        """End the record, and wait until it is written. Does nothing if it is closed already. Not collective.

        Args:
            end: "done", "stopped" or "failed".
        """
        if self._writer is None:
            return
        self.end_step()
        self.flush()
        writer, self._writer = self._writer, None
        writer.write(json.dumps({"end": end}).encode() + b"\n")
        writer.close()

    def _merged(self, steps: list[tuple[int, ...]]) -> Iterator[list[int]]:
        """Yield rows of `_stride` steps: number of steps, end of the last one, samples, nanoseconds by phase."""
        began = self._began_ns
        for start in range(0, len(steps), self._stride):
            group = steps[start : start + self._stride]
            sums = list(group[0]) if len(group) == 1 else [sum(column) for column in zip(*group)]
            sums[1] = group[-1][1] - began
            self._rows += 1
            yield sums
        if self._rows >= ROWS_PER_STRIDE:
            self._rows, self._stride = 0, 2 * self._stride


def host_memory() -> dict[str, int]:
    """Return the bytes of main memory that this process uses; empty if the system doesn't say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return {"resident_bytes": int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")}
    except (OSError, ValueError, IndexError):
        return {}
