"""Activations in host memory between forward and backward."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from stratagem_sharding.torch_private import view_base
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from stratagem.sdk.tensors import has_events

MIN_SIZE_BYTES = 1 << 16
"""Smaller tensors stay on the device: a copy takes longer than it is worth."""


def offload_activations(modules: Iterable[nn.Module]) -> None:
    """Keep what autograd saves in each module's forward on the host. Names and classes stay as they are.

    Parameters stay on the device, where they are needed in any case. On the CPU this changes nothing.
    """
    for module in modules:
        # Inside the module's hooks, so that what gathers parameters saves nothing here.
        # patch: replaced forwards
        module.forward = OffloadedForward(module)


class OffloadedForward:
    """A module's forward, whose saved tensors are on the host until backward reads them.

    An object with bound methods, so that `copy.deepcopy` of the module gives a copy with its own forward.
    """

    def __init__(self, module: nn.Module) -> None:
        self.original_forward = module.forward

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the user's forward: a strategy that looks for one of its arguments finds it."""
        return inspect.signature(self.original_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with saved_tensors_hooks(_to_host, _to_device):
            return self.original_forward(*args, **kwargs)


class _OnHost(NamedTuple):
    """A tensor in host memory."""

    device: torch.device
    """Where it was."""
    copy: torch.Tensor
    copied: torch.Event | None
    """When the copy is there; None where that was waited for."""


def _to_host(tensor: torch.Tensor) -> torch.Tensor | _OnHost:
    # A sparse tensor, or a subclass such as DTensor, has no plain memory that could be copied.
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    device = tensor.device
    if not is_plain or device.type == "cpu" or tensor.nbytes < MIN_SIZE_BYTES or _is_parameter(tensor):
        return tensor
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    is_ordered = has_events(device)
    host.copy_(tensor, non_blocking=is_ordered)
    # Forward goes on beside the copy. Backward may read it on another stream, which waits for the event.
    return _OnHost(
        device, host, torch.accelerator.current_stream(device).record_event() if is_ordered else None
    )


def _to_device(saved: torch.Tensor | _OnHost) -> torch.Tensor:
    if isinstance(saved, torch.Tensor):
        return saved
    if saved.copied is not None:
        torch.accelerator.current_stream(saved.device).wait_event(saved.copied)
    return saved.copy.to(saved.device, non_blocking=True)


def _is_parameter(tensor: torch.Tensor) -> bool:
    """Whether it is a parameter or a view of one, as the transposed weight that a linear layer saves."""
    base = view_base(tensor)
    owner = tensor if base is None else base
    return owner.is_leaf and owner.requires_grad
