"""Another rounding of the same run: what each place's own error is measured with.

Every value that a module returns, and every parameter at the start, is moved by up to one unit in the last place of
its dtype, at random. What comes of it at a place is what another order of summation could make of it there: the
error that the dtype, the depth and cancellation give this place.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stratagem.sdk.tensors import map_tensors
from stratagem_diff.names import named_parameters
from stratagem_diff.torch_private import local_shard


class OtherRounding:
    """Moves values by a unit in their last place, the same on all ranks for the same name."""

    def __init__(self) -> None:
        self._generators: dict[str, torch.Generator] = {}

    def move_parameters(self, root: nn.Module) -> None:
        """Move the parameters of a model. Not collective."""
        with torch.no_grad():
            done = set()
            for name, parameter in named_parameters(root):
                if id(parameter) in done or not parameter.is_floating_point():
                    continue
                done.add(id(parameter))
                local = local_shard(parameter)[0] if isinstance(parameter, DTensor) else parameter.detach()
                local.copy_(self._moved(local, f"parameter {name}"))

    def moved(self, output: Any, name: str) -> Any:
        """Return what a module returned, moved; the gradients that come back through it are moved alike."""
        return map_tensors(lambda tensor: self._output(tensor, name), output)

    def _output(self, tensor: Tensor, name: str) -> Tensor:
        if not tensor.is_floating_point() or isinstance(tensor, DTensor) or not tensor.requires_grad:
            return tensor
        return self._moved(tensor, name)

    def _moved(self, tensor: Tensor, name: str) -> Tensor:
        generator = self._generators.get(name)
        if generator is None:
            generator = self._generators[name] = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        noise = torch.rand(tensor.shape, generator=generator, dtype=dtype).to(tensor.device)
        factor = 1 + torch.finfo(tensor.dtype).eps * (2 * noise - 1)
        return (tensor.to(dtype) * factor).to(tensor.dtype)
