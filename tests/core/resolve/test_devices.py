"""Which devices a run has: those that there are, and that its accelerator can use."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from stratagem.accelerators.base import Accelerator
from stratagem.errors import DeviceError
from stratagem.plugin.component import Availability
from stratagem.resolve.devices import devices_of


class FourDevices(Accelerator):
    """Stands for a machine with four GPUs."""

    name = "four"

    def availability(self) -> Availability:
        return Availability(True, "4 devices")

    def device_count(self) -> int:
        return 4

    def device(self, index: int) -> torch.device:
        return torch.device("meta")


class EvenOnly(FourDevices):
    def default_devices(self) -> int:
        return 1

    def check_index(self, index: int) -> str | None:
        return "its index is odd" if index % 2 else None


@pytest.mark.parametrize(
    ("devices", "asked"), [(5, "5 devices"), ("5", "5 devices"), ([0, 4], "device 4"), ("4,", "device 4")]
)
def test_more_than_there_are(devices: Any, asked: str) -> None:
    with pytest.raises(DeviceError) as error:
        devices_of(FourDevices(), devices)
    assert f"devices={devices!r} asks for {asked} of four, but this machine has 4; " in str(error.value)


def test_the_accelerator_decides_which_can_be_used() -> None:
    assert devices_of(FourDevices(), "auto") == (0, 1, 2, 3)
    assert devices_of(FourDevices(), "auto", default=2) == (0, 1)
    assert devices_of(EvenOnly(), "auto") == (0,)
    assert devices_of(EvenOnly(), "100,") == (100,)
    with pytest.raises(DeviceError, match="asks for 2 devices of four, but its index is odd"):
        devices_of(EvenOnly(), 2)


def test_no_torch_is_imported() -> None:
    program = "import sys, stratagem.resolve.devices, stratagem.names.index; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
