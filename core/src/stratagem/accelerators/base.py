"""`Accelerator`: one kind of device, as a plugin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from stratagem.plugin.component import Availability

if TYPE_CHECKING:
    import torch


class Accelerator(ABC):
    """What a run asks of a kind of device. One object per process, made without arguments."""

    name: ClassVar[str]
    autocast_type: str = "cpu"
    """`device_type` for `torch.autocast`."""
    backend: str = "gloo"
    """Process group backend for tensors on this device."""
    has_distinct_devices: bool = True
    """Whether `devices` may select some of them by index; False where all are alike, as on a CPU."""

    @abstractmethod
    def availability(self) -> Availability:
        """Whether this machine has such a device, and what it found. Initialises no device."""

    @abstractmethod
    def device_count(self) -> int:
        """How many of its devices this machine has; a machine's cores for the CPU. Initialises none."""

    @abstractmethod
    def device(self, index: int) -> torch.device:
        """The device with this index, as `cuda:1`."""

    def default_devices(self) -> int:
        """How many devices "auto" means: all of them, unless the accelerator knows better."""
        return self.device_count()

    def check_index(self, index: int) -> str | None:
        """Why the device `index` can't be used; None where it can."""
        count = self.device_count()
        return None if 0 <= index < count else f"this machine has {count}"

    def set_up(self, device: torch.device) -> None:
        """Make `device` this process's current one. Called once per process, before any tensor."""

    def refuse_precision(self, precision: str) -> str | None:
        """Why its devices can't do `precision`, as "16-mixed needs a GPU"; None where they can."""
        return None

    def synchronize(self, device: torch.device) -> None:
        """Wait until all work queued on `device` is done."""

    def memory(self, device: torch.device) -> dict[str, int]:
        """Bytes in use on `device` by name, as {"allocated_bytes": …}; empty where unknown."""
        return {}
