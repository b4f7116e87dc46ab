"""`DeviceTimes`: measures how long an asynchronous device takes for each phase of some steps, with device events."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from stratagem_report.phases import PHASES, START

WARM_UP = 2
"""Number of first steps that aren't sampled, because they also build caches and graphs."""
EVERY = 10
"""At most one of so many steps is sampled."""
SAMPLES_PER_STRIDE = 512
"""After so many samples, the interval doubles, so that a record grows with the logarithm of the run's length."""
MOST_OUTSTANDING = 4
"""Maximum number of sampled steps that the device hasn't finished. Above it, no further step is sampled."""
MOST_EDGES = 1024
"""Maximum number of phase changes in a sampled step. A step with more isn't sampled."""
COST_SHARE = 1 / 400
"""Maximum share of the training time that sampling may take on the host. Above it, sampling pauses."""


class TimedEvent(Protocol):
    """The used part of `torch.Event`: a point in a device's queue of work."""

    def query(self) -> bool:
        """Whether the device has passed it. Doesn't wait."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return the milliseconds between this event and a later one. The device must have passed both."""


class Events(Protocol):
    """Makes events of one device."""

    def make(self) -> TimedEvent:
        """Return an event that measures time."""

    def record(self, event: Any) -> None:
        """Put it at the end of the device's queue. Doesn't wait."""

    def is_capturing(self) -> bool:
        """Whether work that is queued now becomes part of a graph that runs later."""


class TorchEvents:
    """Makes `torch.Event`s, and records them on a device's current stream.

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
            RuntimeError: the device has no events, or reading them would wait for the device.
        """
        if self._device.type == "mps":
            # MPSEventPool::elapsedTime commits all queued work, and waits for it.
            raise RuntimeError("reading an event of mps waits for all that is queued")
        event: TimedEvent = torch.Event(self._device, enable_timing=True)
        return event

    def record(self, event: Any) -> None:
        """Record it on the device's current stream, even if another device is the current one.

        Raises:
            RuntimeError: the device has no events.
            ValueError: the device isn't the accelerator of this torch.
        """
        event.record(torch.accelerator.current_stream(self._device))

    def is_capturing(self) -> bool:
        """Whether a graph is being captured; False if the device has no graphs."""
        return self._is_capturing is not None and bool(self._is_capturing())


class DeviceTimes:
    """Records an event at each change of phase of some steps. Later steps read the events that the device has passed.

    Nothing here waits for the device. The host's time for recording and reading is measured, and steps are sampled
    only while it is at most `COST_SHARE` of the training time.

    Args:
        events: makes the device's events.

    Attributes:
        is_sampling: whether the current step is sampled. If so, call `change` at its changes of phase.
        why_not: the reason why nothing is measured any more, or None.
    """

    def __init__(self, events: Events) -> None:
        self.is_sampling = False
        self.why_not: str | None = None
        self._events = events
        self._steps = -1
        """Number of finished steps. The start counts as one: hence −1 at first."""
        self._next, self._every, self._samples = WARM_UP, EVERY, 0
        self._began_ns = self._cost_ns = 0
        self._phases: list[int] = []
        """Phases of the current step. Each lies between two events."""
        self._edges: list[TimedEvent] = []
        self._outstanding: deque[tuple[int, list[int], list[TimedEvent]]] = deque()
        self._free: list[TimedEvent] = []
        self._rows: list[list[int]] = []

    def change(self, ended: int, begun: int, now_ns: int) -> None:
        """Record that a phase of a sampled step ends, and another one begins.

        A step in which the run validates, saves or loads isn't typical: the next step is sampled instead.

        Args:
            ended: the phase that ends.
            begun: the phase that begins.
            now_ns: `perf_counter_ns` at this moment.
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
        """Record that a step, or the start, has ended. Read finished events, and begin to sample if it is due.

        Args:
            phase: the current phase.
            is_whole: whether the step ends now. Otherwise it is dropped, and no sample begins.
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
        """Return the samples read since the last call: each step's number and its nanoseconds by phase."""
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
        """Stop sampling the current step."""
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
            # Look at the last event first: if all are on one stream, it is passed last.
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
    """Return the object that measures a device; None for the CPU, whose times are the host's. Doesn't use the device.

    Args:
        device: of this process; if it has several, the first one.
    """
    return None if device.type == "cpu" else DeviceTimes(TorchEvents(device))
