"""What a device that works by itself took for each phase, by a fake one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import STEP, FakeDevice, FakeDeviceLoop, by_phase
from stratagem_report.phases import BACKWARD, FORWARD, OTHER
from stratagem_report.reading import DeviceStep, read_run
from stratagem_report.recording import device as module
from stratagem_report.recording import recorder
from stratagem_report.recording.device import DeviceTimes, TorchEvents, device_times
from stratagem_report.summary import summarize


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDeviceLoop]:
    """A loop whose samples may cost what they like, as its steps take no time, and that must not wait.

    What it has measured is written at its end alone.
    """

    def waits(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the host waited for the device")

    monkeypatch.setattr(module, "COST_SHARE", float("inf"))
    monkeypatch.setattr(recorder, "FLUSH_NS", 10**18)
    for owner, name in (
        (torch.Tensor, "item"),
        (torch.accelerator, "synchronize"),
        (torch.cuda, "synchronize"),
    ):
        monkeypatch.setattr(owner, name, waits)
    made = FakeDeviceLoop(tmp_path)
    yield made
    made.recorder.close("failed")


def test_each_sampled_step_is_what_was_queued_in_each_phase(loop: FakeDeviceLoop) -> None:
    loop.train(30, lambda step: loop.device.run())
    rank = loop.end()
    assert [step.step for step in rank.device_steps] == [3, 13, 23]
    assert [by_phase(step) for step in rank.device_steps] == [STEP] * 3
    assert rank.steps == 30
    summary = summarize(read_run(str(loop.folder))).ranks[0]
    assert (summary.device_samples, summary.untimed) == (3, None)
    assert summary.device_ns is not None
    assert sum(summary.device_ns) == 15e6


def test_a_single_rank_has_its_reduction_in_the_backward(tmp_path: Path, loop: FakeDeviceLoop) -> None:
    alone = FakeDeviceLoop(tmp_path / "alone", world_size=1)
    alone.train(4, lambda step: alone.device.run())
    (step,) = alone.end().device_steps
    assert by_phase(step) == {"data": 1, "forward": 3, "backward": 9, "optimizer": 2}


def test_accumulated_micro_batches_add_up(loop: FakeDeviceLoop) -> None:
    loop.train(4, lambda step: loop.device.run(), micro_batches=3)
    (step,) = loop.end().device_steps
    assert by_phase(step) == {"data": 3, "forward": 9, "backward": 15, "communication": 12, "optimizer": 2}


def test_what_the_device_has_not_done_is_kept_until_it_has(loop: FakeDeviceLoop) -> None:
    loop.train(25)
    assert loop.times.take() == []
    loop.device.run(2.9 * 15)  # nearly to the end of the third step
    loop.train(1)
    assert loop.times.take() == []
    loop.device.run(15)
    loop.train(1)
    ((step, *ns),) = loop.times.take()
    assert by_phase(DeviceStep(step, tuple(ns))) == STEP
    loop.device.run()
    rank = loop.end()
    assert [step.step for step in rank.device_steps] == [13, 23]
    assert [by_phase(step) for step in rank.device_steps] == [STEP] * 2


def test_a_device_that_never_gets_done_has_a_bounded_number_of_events(loop: FakeDeviceLoop) -> None:
    loop.train(60)
    made = len(loop.device.events)
    loop.train(400)
    assert len(loop.device.events) == made
    assert made <= module.MOST_OUTSTANDING * 16


def test_events_are_used_again(loop: FakeDeviceLoop) -> None:
    loop.train(4, lambda step: loop.device.run())
    made = len(loop.device.events)
    loop.train(200, lambda step: loop.device.run())
    assert len(loop.device.events) == made


def test_the_end_takes_what_is_done_and_does_not_wait_for_the_rest(loop: FakeDeviceLoop) -> None:
    loop.train(30)
    loop.device.run(14 * 15)
    rank = loop.end()  # an event of the fake device raises where it is waited for
    assert [step.step for step in rank.device_steps] == [3, 13]
    assert rank.end == "done"


def test_a_step_that_is_under_way_at_the_end_is_not_kept(loop: FakeDeviceLoop) -> None:
    loop.train(2)
    loop.recorder.before_data()
    assert loop.times.is_sampling
    loop.device.run()
    assert loop.end().device_steps == []


def test_at_the_end_no_step_is_begun(loop: FakeDeviceLoop) -> None:
    loop.train(11, lambda step: loop.device.run())
    assert [step.step for step in loop.end().device_steps] == [3]
    assert not loop.times.is_sampling


def test_a_step_with_a_validation_leaves_its_turn_to_the_next(loop: FakeDeviceLoop) -> None:
    def validate(step: int) -> None:
        if step in (3, 14):
            loop.prepared.evaluate()
        loop.device.run()

    loop.train(40, validate)
    steps = loop.end().device_steps
    assert [step.step for step in steps] == [4, 15, 25, 35]
    assert [by_phase(step) for step in steps] == [STEP] * 4


def test_a_step_of_too_many_changes_is_not_kept(
    loop: FakeDeviceLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_EDGES", 10)
    loop.train(5, lambda step: loop.device.run(), micro_batches=20)
    assert loop.end().device_steps == []
    assert len(loop.device.events) <= 5 * 12


def test_nothing_is_recorded_into_a_graph_that_is_captured(loop: FakeDeviceLoop) -> None:
    def capture(step: int) -> None:
        loop.device.run()
        loop.device.capturing = 3 <= step < 6

    loop.train(12, capture)
    assert [step.step for step in loop.end().device_steps] == [7]


def test_a_graph_that_is_captured_within_a_step_ends_its_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COST_SHARE", float("inf"))
    device = FakeDevice()
    times = DeviceTimes(device)
    for _ in range(3):
        times.end_step(OTHER)
    assert times.is_sampling
    device.capturing = True
    times.change(OTHER, FORWARD, 0)
    assert not times.is_sampling
    device.capturing = False
    times.end_step(OTHER)
    assert times.is_sampling


def test_a_long_run_is_sampled_less_and_less(loop: FakeDeviceLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLES_PER_STRIDE", 3)
    loop.train(150, lambda step: loop.device.run())
    assert [step.step for step in loop.end().device_steps] == [3, 13, 23, 33, 53, 73, 93, 133]


def test_samples_wait_until_they_cost_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 0.0
    sampled = []
    device = FakeDevice()

    def record(event: Any) -> None:
        nonlocal now_ms
        now_ms += 1  # as if to record one took the host a millisecond

    monkeypatch.setattr(module, "perf_counter_ns", lambda: int(1 + now_ms * 1e6))
    monkeypatch.setattr(device, "record", record)
    times = DeviceTimes(device)
    for step in range(2000):
        times.end_step(OTHER)
        if times.is_sampling:
            sampled.append(step)
            times.change(OTHER, FORWARD, int(1 + now_ms * 1e6))
            times.change(FORWARD, BACKWARD, int(1 + now_ms * 1e6))
        now_ms += 10
    assert len(sampled) > 1
    assert 4 * len(sampled) <= module.COST_SHARE * now_ms + 4
    assert min(b - a for a, b in pairwise(sampled)) >= 4 / module.COST_SHARE / 10 - 2


@pytest.mark.parametrize("when", ["at first", "later", "when it is read"])
def test_a_device_without_timed_events_is_said_to_have_none(
    loop: FakeDeviceLoop, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def break_it(step: int) -> None:
        loop.device.run()
        if when == "later" and step == 20:
            loop.device.broken = "lost\nwith details"

    if when == "at first":
        loop.device.broken = "fake backend doesn't support events."
    if when == "when it is read":

        def unreadable(*args: Any) -> float:
            raise NotImplementedError("no times here")

        monkeypatch.setattr("fake_device.FakeDeviceEvent.elapsed_time", unreadable)
    loop.train(40, break_it)
    rank = loop.end()
    assert rank.steps == 40
    why = {
        "at first": "fake backend doesn't support events.",
        "later": "lost",
        "when it is read": "no times here",
    }
    assert [event["why"] for event in rank.events if event["event"] == "untimed"] == [why[when]]
    assert len(rank.device_steps) == (2 if when == "later" else 0)
    summary = summarize(read_run(str(loop.folder))).ranks[0]
    assert summary.untimed == (None if when == "later" else why[when])


def test_events_are_timed_and_go_on_the_current_stream_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 1)
    reported: list[Any] = []

    class FakeTorchEvent:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            reported.append((args, kwargs))

        def record(self, stream: Any) -> None:
            reported.append(stream)

    monkeypatch.setattr(torch, "Event", FakeTorchEvent)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"stream of {device}")
    events = TorchEvents(device)
    events.record(events.make())
    assert reported == [((device,), {"enable_timing": True}), "stream of cuda:1"]


@pytest.mark.parametrize(
    ("device", "why"), [("mps", "waits for all that is queued"), ("cuda", ""), ("xpu", ""), ("meta", "")]
)
def test_devices_that_are_not_here_have_no_times_and_break_nothing(
    monkeypatch: pytest.MonkeyPatch, device: str, why: str
) -> None:
    monkeypatch.setattr(module, "COST_SHARE", float("inf"))
    if device != "mps" and torch.accelerator.is_available():
        pytest.skip("there is such a device")
    times = device_times(torch.device(device))
    assert times is not None
    for _ in range(5):
        times.end_step(OTHER)
    assert times.why_not is not None
    assert why in times.why_not
    assert times.take() == []
