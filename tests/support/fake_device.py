"""A device that works by itself, where there is none: `FakeDevice`, whose work is done when a test says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stratagem_report.phases import PHASES
from stratagem_report.reading import DeviceStep, RankRecord, read_run
from stratagem_report.recording.device import DeviceTimes
from stratagem_report.recording.recorder import Recorder
from stratagem_report.recording.wrapped import RecordedPrepared

STEP = {"data": 1, "forward": 3, "backward": 5, "communication": 4, "optimizer": 2}
"""What a step of `FakeDeviceLoop` takes the device on one of several ranks, in milliseconds."""


def by_phase(step: DeviceStep) -> dict[str, float]:
    """Milliseconds of the phases that took any."""
    return {PHASES[phase]: ns / 1e6 for phase, ns in enumerate(step.ns) if ns}


class FakeDevice:
    """Work is queued by its length, and done by `run`; as `Events`, it makes and records `FakeDeviceEvent`s."""

    def __init__(self) -> None:
        self.queued_ms = self.done_ms = 0.0
        self.events: list[FakeDeviceEvent] = []
        self.capturing = False
        self.broken: str | None = None

    def work(self, ms: float) -> None:
        """Queue work."""
        self.queued_ms += ms

    def run(self, ms: float = float("inf")) -> None:
        """Let it work so long, at most until all is done."""
        self.done_ms = min(self.queued_ms, self.done_ms + ms)

    def make(self) -> FakeDeviceEvent:
        self.events.append(FakeDeviceEvent(self))
        return self.events[-1]

    def record(self, event: FakeDeviceEvent) -> None:
        if self.broken is not None:
            raise RuntimeError(self.broken)
        assert not self.capturing, "an event was recorded into a graph"
        assert event.query(), "an event was recorded again before the device came to it"
        event.at_ms = self.queued_ms

    def is_capturing(self) -> bool:
        return self.capturing


class FakeDeviceEvent:
    """As `torch.Event`, of a `FakeDevice`; a test fails that waits for one."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.at_ms = device, -1.0

    def query(self) -> bool:
        return self.device.done_ms >= self.at_ms

    def elapsed_time(self, end_event: Any) -> float:
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return float(end_event.at_ms - self.at_ms)

    def synchronize(self) -> None:
        raise AssertionError("the host waited for the device")

    wait = synchronize


class FakeDevicePrepared:
    """Stands for a strategy on a `FakeDevice`, as the loop sees it: queues what `STEP` says."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.end_forward: Any = None
        self.weight = torch.ones(3, requires_grad=True)
        self.weight.register_post_accumulate_grad_hook(self._reduce_at_the_end)

    def dataloader(self, loader: Any) -> Any:
        for batch in loader:
            self.device.work(1)
            yield batch

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> None:
        loss = (self.weight * 2).sum()
        self.device.work(3)
        self.end_forward(None, None, loss)
        self.device.work(5)
        loss.backward()

    def step(self, index: int, closure: Any = None) -> bool:
        self.device.work(2)
        return True

    def evaluate(self, *args: Any) -> None:
        self.device.work(50)

    def _reduce_at_the_end(self, tensor: torch.Tensor) -> None:
        # As DistributedDataParallel waits for its collectives: after all gradients are there.
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self.device.work(4))


class FakeDeviceLoop:
    """A recorded training on a `FakeDevice`."""

    def __init__(self, folder: Path, world_size: int = 2) -> None:
        self.folder, self.device = folder, FakeDevice()
        self.times = DeviceTimes(self.device)
        self.recorder = Recorder(world_size, time.perf_counter_ns(), dict, self.times)
        self.recorder.open(str(folder), 0, 0, {"device": "fake:0"})
        inner: Any = FakeDevicePrepared(self.device)
        self.prepared = RecordedPrepared(inner, self.recorder)
        inner.end_forward = self.prepared.end_forward

    def train(
        self, steps: int, after_step: Callable[[int], None] = lambda step: None, micro_batches: int = 1
    ) -> None:
        batches = self.prepared.dataloader([torch.zeros(4)] * steps * micro_batches)
        for index, batch in enumerate(batches):
            self.prepared.forward_backward("training_step", batch, index)
            if (index + 1) % micro_batches == 0:
                self.prepared.step(0)
                after_step(index // micro_batches + 1)

    def end(self) -> RankRecord:
        self.recorder.begin_end(failed=False)
        self.recorder.close("done")
        return read_run(str(self.folder)).attempts[-1][0]
