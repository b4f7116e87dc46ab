"""Tensors between XLA devices and checkpoints, by way of the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stratagem import CheckpointReader
from stratagem_xla.client import send_off

RNG = "xla_rng"
"""Key of the state of XLA's generator in what `Prepared.state` returns."""


def on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies on the CPU, in one transfer; what was one tensor under two keys stays one."""
    copies: dict[int, torch.Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach()
    wanted = [tensor for tensor in copies.values() if tensor.device.type == "xla"]
    if wanted:
        send_off()
    copies = {key: tensor.cpu() for key, tensor in copies.items()}
    return {key: copies[id(tensor)] for key, tensor in tensors.items()}


class CpuReader(CheckpointReader):
    """Reads what goes to XLA devices into memory of the CPU first; otherwise the reader that it is given.

    Args:
        reader: the opened checkpoint.
        instead: by key, what to fill in place of a copy that `on_cpu` made of it.
    """

    def __init__(self, reader: CheckpointReader, instead: Mapping[str, torch.Tensor]) -> None:
        self.reader, self.instead = reader, instead
        self.state, self.tensors, self.world_size = reader.state, reader.tensors, reader.world_size

    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        return self.reader.rank_state(rank)

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Fill `targets` a tensor at a time, so that no second copy of all is ever in memory."""
        for key, given in targets.items():
            target = self.instead.get(key, given)
            if target.device.type != "xla":
                self.reader.read({key: target})
                continue
            copy = torch.empty(target.shape, dtype=target.dtype)
            self.reader.read({key: copy})
            with torch.no_grad():
                target.copy_(copy)
