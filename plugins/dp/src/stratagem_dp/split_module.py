"""`SplitModule`: a forward that runs each part of a batch on a device of its own."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from stratagem import Module, SetupRequest
from stratagem.batches import map_tensors
from stratagem.parts import PartLogs, merge, split
from stratagem_dp.replicas import replicate


class SplitModule(nn.Module):
    """Splits what it is called with over the devices of this process and merges what the parts return.

    The first part runs in the module itself, the others in copies made for this call. They run in
    turn: accelerators work in the background anyway, and the order of random numbers stays the same.

    Args:
        request: with at least one device; `request.part` is called for each part, and the end of a step,
            where the user's module defines it, with the list of all outputs.
    """

    def __init__(self, request: SetupRequest) -> None:
        super().__init__()
        self.part = request.module if request.part is None else request.part
        self.devices = request.devices
        self.ends = request.ends
        self._plain = (request.plain,)  # in a tuple, so that it isn't registered a second time

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        parts = split((args, kwargs), len(self.devices))
        logs = PartLogs()
        # All copies before the first part runs: it may change buffers.
        called = [self._called(device) for device in self.devices[1 : len(parts)]]
        outputs = []
        for (module, plain), device, (value, size) in zip(
            [(self.part, self._plain[0]), *called], self.devices, parts
        ):
            part_args, part_kwargs = map_tensors(partial(_moved, device=device), value)
            with logs.of_part(plain, size) if isinstance(plain, Module) else nullcontext():
                outputs.append(module(*part_args, **part_kwargs))
        if isinstance(self._plain[0], Module):
            logs.replay(self._plain[0])
        end = self.ends.get(args[0]) if self.ends else None
        return merge(outputs, [size for _, size in parts]) if end is None else end(outputs)

    def _called(self, device: torch.device) -> tuple[nn.Module, nn.Module]:
        """Return copies on `device` of what is called, and of the user's module in it."""
        copies = replicate(self.part, device)
        plain = copies[id(self._plain[0])]
        if isinstance(plain, Module):
            plain.replica_device = device
        return copies[id(self.part)], plain


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, non_blocking=True)
