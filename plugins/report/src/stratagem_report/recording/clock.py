"""`PhaseClock`: divides a process's wall time into phases that add up to it; `TimedClock` asks the device, too."""

from __future__ import annotations

import os
import time
from time import perf_counter_ns
from typing import TYPE_CHECKING

from stratagem_report.phases import OTHER, PHASES, START

if TYPE_CHECKING:
    from stratagem_report.recording.device import DeviceTimes


class PhaseClock:
    """Counts the nanoseconds of each phase; there is one phase at any moment.

    A phase of a step that begins within one of the long ones (start, validation, checkpoint, load) doesn't
    interrupt it: a collective of a validation belongs to the validation.

    Args:
        began_ns: when the first phase, "start", began, by `perf_counter_ns`.

    Attributes:
        ns: nanoseconds by phase since the last `take`, without those since the last change of phase.
        phase: the current one.
        now_ns: when it began.
    """

    __slots__ = ("now_ns", "ns", "phase")

    def __init__(self, began_ns: int) -> None:
        self.ns = [0] * len(PHASES)
        self.phase, self.now_ns = START, began_ns

    def enter(self, phase: int) -> int:
        """Begin a phase; returns the one to go back to with `leave`."""
        before = self.phase
        if before >= START and phase < before:
            return before
        now = perf_counter_ns()
        self.ns[before] += now - self.now_ns
        self.now_ns, self.phase = now, phase
        return before

    def leave(self, before: int) -> None:
        """Go back to the phase that `enter` returned."""
        now = perf_counter_ns()
        self.ns[self.phase] += now - self.now_ns
        self.now_ns, self.phase = now, before

    def take(self, until_change: bool = False) -> list[int]:
        """Return the nanoseconds by phase, up to now or to the last change of phase, and count from there again."""
        taken = self.ns
        if not until_change:
            now = perf_counter_ns()
            taken[self.phase] += now - self.now_ns
            self.now_ns = now
        self.ns = [0] * len(PHASES)
        return taken

    def end_start(self) -> None:
        """Go on with a step's own phases, once there is a step."""
        self.leave(OTHER)


class TimedClock(PhaseClock):
    """Tells what measures the device where phases of the host change.

    A separate class, so that processes on the CPU don't load it.

    Args:
        began_ns: as of `PhaseClock`.
        device: notified of each change of phase in the steps that it samples.
    """

    __slots__ = ("_device",)

    def __init__(self, began_ns: int, device: DeviceTimes) -> None:
        super().__init__(began_ns)
        self._device = device

    def enter(self, phase: int) -> int:
        """Begin a phase, as of `PhaseClock`."""
        before = super().enter(phase)
        if self._device.is_sampling and self.phase != before:
            self._device.change(before, self.phase, self.now_ns)
        return before

    def leave(self, before: int) -> None:
        """Go back to a phase, as of `PhaseClock`."""
        ended = self.phase
        super().leave(before)
        if self._device.is_sampling and ended != before:
            self._device.change(ended, before, self.now_ns)

    def take(self, until_change: bool = False) -> list[int]:
        """End a step, as of `PhaseClock`; one up to the last change of phase isn't kept of the device."""
        taken = super().take(until_change)
        self._device.end_step(self.phase, is_whole=not until_change)
        return taken


def process_age_ns() -> int:
    """How long this process has been running, to some 10 ms; 0 where the system doesn't tell."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            started_ticks = int(file.read().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return 0
    return max(0, int(age_s * 1e9))
