"""The CPU accelerator."""

from __future__ import annotations

import os

import pytest
import torch
from stratagem_cpu import CpuAccelerator

from stratagem.errors import DeviceError
from stratagem.resolve.devices import devices_of


def test_it_is_always_there() -> None:
    availability = CpuAccelerator().availability()
    assert availability.ok
    assert availability.reason.split()[0] == str(CpuAccelerator().device_count())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system doesn't pin processes")
def test_only_usable_cores_count() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert CpuAccelerator().device_count() == 1
        assert CpuAccelerator().availability().reason == "1 usable core"
    finally:
        os.sched_setaffinity(0, before)


def test_devices_are_processes_and_may_outnumber_the_cores() -> None:
    many = CpuAccelerator().device_count() + 3
    assert devices_of(CpuAccelerator(), "auto") == (0,)
    assert devices_of(CpuAccelerator(), many) == tuple(range(many))
    assert len(devices_of(CpuAccelerator(), -1)) == CpuAccelerator().device_count()
    assert CpuAccelerator().device(many) == torch.device("cpu")


def test_more_processes_than_a_machine_bears_are_refused() -> None:
    with pytest.raises(
        DeviceError, match=r"devices=99999 asks for 99999 devices of cpu, but its \d+ usable core"
    ):
        devices_of(CpuAccelerator(), 99999)


def test_half_precision_is_refused_with_the_reason() -> None:
    accelerator = CpuAccelerator()
    assert "NaN" in (accelerator.refuse_precision("16-true") or "")
    for precision in ("32-true", "64-true", "16-mixed", "bf16-mixed", "bf16-true"):
        assert accelerator.refuse_precision(precision) is None, precision


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="this system has no /proc")
def test_memory_is_that_of_the_process() -> None:
    accelerator = CpuAccelerator()
    before = accelerator.memory(torch.device("cpu"))["resident_bytes"]
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    after = accelerator.memory(torch.device("cpu"))["resident_bytes"]
    assert after - before > 48 * 2**20
    assert block.sum() > 0


def test_tensors_live_where_it_says() -> None:
    accelerator = CpuAccelerator()
    device = accelerator.device(1)
    accelerator.set_up(device)
    accelerator.synchronize(device)
    assert torch.ones(2, device=device).device.type == accelerator.autocast_type == "cpu"
    assert accelerator.backend == "gloo"
