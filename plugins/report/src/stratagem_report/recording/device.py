"""`DeviceTimes`: how long an asynchronous device took for each phase of some steps, measured by its events."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from stratagem_report.phases import PHASES, START

WARM_UP = 2
"""Steps at the beginning that aren't sampled: much is made in them."""
EVERY = 10
"""One of so many steps is sampled, at most."""
SAMPLES_PER_STRIDE = 512
"""After so many samples, half as many steps are sampled: a record grows with the logarithm of the run's length."""
MOST_OUTSTANDING = 4
"""Sampled steps that the device may not have done yet; no other one is sampled until it has done the oldest."""
MOST_EDGES = 1024
"""Changes of phase in a sampled step; a step with more of them isn't sampled."""
COST_SHARE = 1 / 400
"""Share of the training time that the sampling may take on the host. Beyond it, sampling pauses."""


class TimedEvent(Protocol):
    """What is used of `torch.Event`: a point in the work that is queued on a device."""

    def query(self) -> bool:
        """Whether the device has passed it. Doesn't wait."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds between this event and another on the device, which must have passed both."""


class Events(Protocol):
    """Makes events of one device."""

    def make(self) -> TimedEvent:
        """Return one that can be timed."""

    def record(self, event: Any) -> None:
        """Queue it behind what is queued on the device. Doesn't wait."""

    def is_capturing(self) -> bool:
        """Whether what is queued now goes into a graph, to be run later."""


class TorchEvents:
    """`torch.Event` on the current stream of a device.

    Args:
        device: not the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        module: Any = getattr(torch, device.type, None)
        self._is_capturing = getattr(module, "is_current_stream_capturing", None)

    def make(self) -> TimedEvent:
        """Return an event.

        Raises:
            RuntimeError: the device has none, or none that can be read without waiting.
        """
        if self._device.type == "mps":
            # MPSEventPool::elapsedTime commits what is queued and waits until it is done.
            raise RuntimeError("reading an event of mps waits for all that is queued")
        event: TimedEvent = torch.Event(self._device, enable_timing=True)
        return event

    def record(self, event: Any) -> None:
        """Queue it on the current stream, also where another device is the current one.

        Raises:
            RuntimeError: the device has no events.
            ValueError: the device isn't the accelerator that torch knows here.
        """
        event.record(torch.accelerator.current_stream(self._device))

    def is_capturing(self) -> bool:
        """Whether a graph is being captured; False where the device has none."""
        return self._is_capturing is not None and bool(self._is_capturing())


class DeviceTimes:
    """Puts an event at each change of phase of some steps, and reads them in later steps, once they are done.

    Nothing here waits for the device. What an event's recording and reading takes of the host is measured, and steps
    are sampled only while that is at most `COST_SHARE` of the time.

    Args:
        events: of the device.

    Attributes:
        is_sampling: whether the current step is sampled; if so, report its changes of phase.
        why_not: why nothing is measured any more.
    """

    def __init__(self, events: Events) -> None:
        self.is_sampling = False
        self.why_not: str | None = None
        self._events = events
        self._steps = -1
        """That are over; the start, which comes before the first, counts, too."""
        self._next, self._every, self._samples = WARM_UP, EVERY, 0
        self._began_ns = self._cost_ns = 0
        self._phases: list[int] = []
        """Phases of the current step, each between two events."""
        self._edges: list[TimedEvent] = []
        self._outstanding: deque[tuple[int, list[int], list[TimedEvent]]] = deque()
        self._free: list[TimedEvent] = []
        self._rows: list[list[int]] = []

    def change(self, ended: int, begun: int, now_ns: int) -> None:
        """Note that a phase of a sampled step ends, and another begins.

        A step in which the run validates, saves or loads isn't a typical one: the next one is sampled instead.

        Args:
            ended: the phase before.
            begun: the phase from now on.
            now_ns: by `perf_counter_ns`.
        """
        if begun >= START or len(self._phases) >= MOST_EDGES:
            self._put_off()
            return
        try:
            if self._events.is_capturing():
                self._put_off()
            else:
                self._phases.append(ended)
                self._record()
        except (RuntimeError, ValueError) as error:
            self._give_up(error)
        self._cost_ns += perf_counter_ns() - now_ns

    def end_step(self, phase: int, is_whole: bool = True) -> None:
        """Note that a step, or the start, is over; read what is done, and begin to sample where it is due.

        Args:
            phase: the current one.
            is_whole: whether the step's end is now. If not, it isn't kept, and none is begun.
        """
        if self.why_not is not None:
            return
        now_ns = perf_counter_ns()
        self._began_ns = self._began_ns or now_ns
        self._steps += 1
        try:
            if self._events.is_capturing():
                self._put_off()
                return
            if self.is_sampling and is_whole:
                self._phases.append(phase)
                self._record()
                self._outstanding.append((self._steps, self._phases, self._edges))
            self._drop()
            self._read()
            if is_whole and phase < START and self._is_due(now_ns):
                self.is_sampling = True
                self._next = self._steps + self._every
                self._record()
        except (RuntimeError, ValueError) as error:
            self._give_up(error)
        self._cost_ns += perf_counter_ns() - now_ns

    def take(self) -> list[list[int]]:
        """Return what was read since the last call: of each sampled step its number, and nanoseconds by phase."""
        taken, self._rows = self._rows, []
        return taken

    def _is_due(self, now_ns: int) -> bool:
        return (
            self._steps >= self._next
            and len(self._outstanding) < MOST_OUTSTANDING
            and self._cost_ns <= COST_SHARE * (now_ns - self._began_ns)
        )

    def _record(self) -> None:
        event = self._free.pop() if self._free else self._events.make()
        self._edges.append(event)
        self._events.record(event)

    def _drop(self) -> None:
        """End the sampling of the current step."""
        self.is_sampling = False
        self._phases, self._edges = [], []

    def _put_off(self) -> None:
        """Sample the next step instead of the current one."""
        if self.is_sampling:
            self._drop()
            self._next = self._steps + 1

    def _read(self) -> None:
        while self._outstanding:
            step, phases, events = self._outstanding[0]
            # The last one first: where all are on one stream, it is the last to be done.
            if not all(event.query() for event in reversed(events)):
                return
            self._outstanding.popleft()
            ns = [0] * len(PHASES)
            for phase, begin, end in zip(phases, events, events[1:]):
                ns[phase] += max(0, round(begin.elapsed_time(end) * 1e6))
            self._rows.append([step, *ns])
            self._free += events
            self._samples += 1
            if self._samples % SAMPLES_PER_STRIDE == 0:
                self._every *= 2

    def _give_up(self, error: Exception) -> None:
        self._drop()
        self._outstanding.clear()
        self._free.clear()
        self.why_not = str(error).strip().partition("\n")[0] or type(error).__name__


def device_times(device: torch.device) -> DeviceTimes | None:
    """Return what measures a device; None for the CPU, whose times are the host's. Doesn't touch the device.

    Args:
        device: of this process; the first one, where it has several.
    """
    return None if device.type == "cpu" else DeviceTimes(TorchEvents(device))
