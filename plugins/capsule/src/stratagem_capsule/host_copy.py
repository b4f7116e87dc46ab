"""`HostCopies`: copies of tensors in host memory, for which the training loop doesn't wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stratagem.sdk.tensors import has_events


@dataclass(frozen=True)
class HostCopy:
    """A copy that may be under way."""

    tensor: torch.Tensor
    """On the CPU; call the copy before you read it."""
    event: Any = None

    def __call__(self) -> torch.Tensor:
        """Wait until the copy is there, and return it."""
        if self.event is not None:
            self.event.synchronize()
        return self.tensor


class HostCopies:
    """Makes copies of one device's tensors.

    Args:
        device: of the rank.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_events = has_events(device)

    def of(self, tensor: torch.Tensor) -> HostCopy:
        """Return a copy of a tensor as it is now in the order of the device's work."""
        tensor = tensor.detach()
        if tensor.device.type == "cpu":
            return HostCopy(tensor.clone())
        if not self._has_events:
            return HostCopy(tensor.to("cpu"))
        copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        event = torch.Event(self._device)
        event.record(torch.accelerator.current_stream(self._device))
        return HostCopy(copy, event)
