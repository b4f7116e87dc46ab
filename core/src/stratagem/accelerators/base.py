"""`Accelerator`: one kind of device, as a plugin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from stratagem.plugin.component import Availability

if TYPE_CHECKING:
    import torch


class Accelerator(ABC):
    """A kind of device, for a run. There is one object per process, made without arguments."""

    name: ClassVar[str]
    autocast_type: str = "cpu"
    """`device_type` for `torch.autocast`."""
    backend: str = "gloo"
    """Process group backend for tensors on this device."""
    has_distinct_devices: bool = True
    """Whether `devices` may select some of them by index; False if all are alike, as on a CPU."""

    @abstractmethod
    def availability(self) -> Availability:
        """Return whether this machine has such a device, and what was found. Initialises no device."""

    @abstractmethod
    def device_count(self) -> int:
        """Return how many of its devices this machine has; the number of cores for the CPU. Initialises none."""

    @abstractmethod
    def device(self, index: int) -> torch.device:
        """Return the device with this index, such as `cuda:1`."""

    def default_devices(self) -> int:
        """Return how many devices "auto" means: all of them, unless it is overridden."""
        return self.device_count()

    def check_index(self, index: int) -> str | None:
        """Return why the device `index` can't be used; None if it can."""
        count = self.device_count()
        return None if 0 <= index < count else f"this machine has {count}"

    def set_up(self, device: torch.device) -> None:
        """Make `device` this process's current one. Called once per process, before any tensor is made."""

    def refuse_precision(self, precision: str) -> str | None:
        """Return why its devices don't support `precision`, such as "16-mixed needs a GPU"; None if they do."""
        return None

    def synchronize(self, device: torch.device) -> None:
        """Wait until all work queued on `device` is done."""

    def memory(self, device: torch.device) -> dict[str, int]:
        """Return the bytes in use on `device` by name, such as {"allocated_bytes": …}; empty if unknown."""
        return {}
