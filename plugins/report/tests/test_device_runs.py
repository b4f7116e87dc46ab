"""What a device took for each phase of a whole run: a fake one, none on the CPU, and a GPU where there is one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, by_phase
from stratagem_report.phases import BACKWARD, FORWARD, OTHER, VALIDATION
from stratagem_report.reading import RankRecord, read_run
from stratagem_report.recording import device as module
from stratagem_report.recording import extension
from stratagem_report.recording.clock import PhaseClock
from stratagem_report.recording.device import DeviceTimes, TorchEvents, device_times
from stratagem_report.recording.recorder import Recorder
from stratagem_report.summary import summarize
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

FILE = "record/attempt-000/rank-00000.jsonl"

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA or AMD GPU")


class Net(stratagem.Module):
    """Linear layers, which queue 2 ms of work on a `FakeDevice` as they are called."""

    def __init__(self, device: FakeDevice | None = None, width: int = 8, batch_size: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
        self.fake, self.width, self.batch_size = device, width, batch_size
        self.synchronized: dict[int, float] = {}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.fake is not None:
            self.fake.run()
            self.fake.work(2)
        elif self.device.type == "cuda" and batch_idx in (20, 60):
            torch.cuda.synchronize()
            self.synchronized[batch_idx] = time.perf_counter()
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    def train_dataloader(self) -> Any:
        return DataLoader(
            TensorDataset(torch.ones(1, self.width).expand(64 * self.batch_size, self.width)), self.batch_size
        )

    val_dataloader = train_dataloader


def fit(folder: Path, net: Net, accelerator: str = "cpu") -> RankRecord:
    trainer = stratagem.Trainer(
        strategy="single", accelerator=accelerator, devices=1, max_epochs=1, run_dir=folder, plugins=["record"],
        enable_progress_bar=False, logger=False, enable_checkpointing=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(net)
    return read_run(str(folder)).attempts[0][0]


def test_a_run_of_trainer_on_a_fake_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COST_SHARE", float("inf"))
    fake = FakeDevice()
    monkeypatch.setattr(extension, "device_times", lambda device: DeviceTimes(fake))
    rank = fit(tmp_path, Net(fake))
    assert rank.steps == 64
    assert [step.step for step in rank.device_steps] == [3, 13, 23, 33, 43, 53, 63]
    assert [by_phase(step) for step in rank.device_steps] == [{"forward": 2}] * 7


def test_the_cpu_has_no_events_and_its_clock_is_the_one_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("an event was made on the CPU")

    monkeypatch.setattr(torch, "Event", made)
    assert device_times(torch.device("cpu")) is None
    assert type(Recorder(1, 0, dict).clock) is PhaseClock
    rank = fit(tmp_path, Net())
    assert rank.device_steps == []
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert {key for line in lines[1:] for key in line} <= {
        "rows",
        "memory",
        "at",
        "end",
        "event",
        "step",
        "path",
    }
    assert summarize(read_run(str(tmp_path))).ranks[0].untimed is None


@pytest.mark.cuda
@needs_gpu
def test_on_a_gpu_a_step_is_as_long_as_by_a_synchronized_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COST_SHARE", float("inf"))
    net = Net(width=4096, batch_size=256)
    rank = fit(tmp_path, net, "cuda")
    took_ns = (net.synchronized[60] - net.synchronized[20]) / 40 * 1e9
    sums = [sum(step.ns) for step in rank.device_steps if 21 < step.step <= 60]
    assert len(sums) == 4
    assert all(took_ns / 2 < total < took_ns * 2 for total in sums), (took_ns, rank.device_steps)
    assert all(step.ns[BACKWARD] > step.ns[FORWARD] > 0 for step in rank.device_steps)
    assert not any(any(step.ns[VALIDATION:]) for step in rank.device_steps)


@pytest.mark.cuda
@needs_gpu
def test_on_a_gpu_nothing_waits_for_what_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COST_SHARE", float("inf"))
    device = torch.device("cuda", torch.cuda.current_device())
    times = DeviceTimes(TorchEvents(device))
    block = torch.ones(8192, 8192, device=device)
    for _ in range(3):
        times.end_step(OTHER)
        torch.mm(block, block)
    torch.cuda.synchronize()
    assert times.is_sampling
    before = torch.cuda.Event()
    for _ in range(20):
        torch.mm(block, block)
    before.record()
    times.change(OTHER, FORWARD, time.perf_counter_ns())
    times.end_step(FORWARD)
    assert not before.query(), "the device was done before the host could have waited"
    assert times.take() == []
    torch.cuda.synchronize()
    times.end_step(OTHER)
    ((step, *ns),) = times.take()
    assert step == 3
    assert ns[OTHER] > ns[FORWARD] >= 0
