"""`PhaseClock`: divides a process's wall time into phases. `TimedClock` also notifies `DeviceTimes`."""

from __future__ import annotations

import os
import time
from time import perf_counter_ns
from typing import TYPE_CHECKING

from stratagem_report.phases import OTHER, PHASES, START

if TYPE_CHECKING:
    from stratagem_report.recording.device import DeviceTimes


class PhaseClock:
    """Counts the nanoseconds of each phase. There is exactly one current phase at any time.

    Start, validation, checkpoint and load are long phases. A phase of a step that begins within one of them doesn't
    interrupt it: a collective call during a validation counts as validation.

    Args:
        began_ns: `perf_counter_ns` at the beginning of the first phase, "start".

    Attributes:
        ns: nanoseconds by phase from the last `take` to the last change of phase.
        phase: the current phase.
        now_ns: when the current phase began.
    """

    __slots__ = ("now_ns", "ns", "phase")

    def __init__(self, began_ns: int) -> None:
        self.ns = [0] * len(PHASES)
        self.phase, self.now_ns = START, began_ns

    def enter(self, phase: int) -> int:
        """Begin a phase. Returns the phase to pass to `leave`."""
        before = self.phase
        if before >= START and phase < before:
            return before
        now = perf_counter_ns()
        self.ns[before] += now - self.now_ns
        self.now_ns, self.phase = now, phase
        return before

    def leave(self, before: int) -> None:
        """Return to the phase that `enter` returned."""
        now = perf_counter_ns()
        self.ns[self.phase] += now - self.now_ns
        self.now_ns, self.phase = now, before

    def take(self, until_change: bool = False) -> list[int]:
        """Return the nanoseconds by phase, up to now or to the last change of phase, and restart from there."""
        taken = self.ns
        if not until_change:
            now = perf_counter_ns()
            taken[self.phase] += now - self.now_ns
            self.now_ns = now
        self.ns = [0] * len(PHASES)
        return taken

    def end_start(self) -> None:
        """End the start, and begin a step's own phases."""
        self.leave(OTHER)


class TimedClock(PhaseClock):
    """Tells `DeviceTimes` about changes of phase on the host.

    It is a separate class, so that processes on the CPU don't import `DeviceTimes`.

    Args:
        began_ns: as in `PhaseClock`.
        device: notified of each change of phase in the steps that it samples.
    """

    __slots__ = ("_device",)

    def __init__(self, began_ns: int, device: DeviceTimes) -> None:
        super().__init__(began_ns)
        self._device = device

    def enter(self, phase: int) -> int:
        """Begin a phase; see `PhaseClock`."""
        before = super().enter(phase)
        if self._device.is_sampling and self.phase != before:
            self._device.change(before, self.phase, self.now_ns)
        return before

    def leave(self, before: int) -> None:
        """Return to a phase; see `PhaseClock`."""
        ended = self.phase
        super().leave(before)
        if self._device.is_sampling and ended != before:
            self._device.change(ended, before, self.now_ns)

    def take(self, until_change: bool = False) -> list[int]:
        """End a step; see `PhaseClock`. With `until_change`, the device's times of the step are dropped."""
        taken = super().take(until_change)
        self._device.end_step(self.phase, is_whole=not until_change)
        return taken


def process_age_ns() -> int:
    """Return how long this process has been running, with a precision of about 10 ms; 0 if the system doesn't say."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            started_ticks = int(file.read().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return 0
    return max(0, int(age_s * 1e9))
