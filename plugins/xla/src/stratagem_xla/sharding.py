"""How tensors lie on the devices of a process, where one virtual device stands for all (SPMD)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from stratagem.sdk.tensors import opened
from stratagem_xla.xla_private import sharding_spec


class Layout:
    """A mesh with one axis over all devices of this process.

    Args:
        devices: how many; with one, nothing needs to be said of any tensor.
        axis: the mesh's axis, along which batches are cut.
    """

    def __init__(self, devices: int, axis: str) -> None:
        self.devices, self.axis = devices, axis
        self.mesh: Any = None
        if devices > 1:
            import numpy as np
            import torch_xla.distributed.spmd as xs

            self.mesh = xs.Mesh(np.arange(devices), (devices,), (axis,))

    def shard(self, tensor: torch.Tensor, dim: int = 0) -> None:
        """Cut `tensor` along a dim; its size needn't be a multiple of the number of devices."""
        self._mark(tensor, tuple(self.axis if each == dim else None for each in range(tensor.dim())))

    def replicate(self, tensor: torch.Tensor) -> None:
        """Keep all of `tensor` on every device."""
        self._mark(tensor, (None,) * tensor.dim())

    def shard_batch(self, batch: Any, size: int | None) -> None:
        """Cut all tensors of a batch that have an entry per sample; others are on every device."""
        if self.mesh is None or size is None:
            return
        for tensor in tensors_in(batch):
            if tensor.dim() and tensor.shape[0] == size and tensor.device.type == "xla":
                self.shard(tensor)

    def _mark(self, tensor: torch.Tensor, spec: tuple[str | None, ...]) -> None:
        if self.mesh is None or not spec:
            return
        import torch_xla.distributed.spmd as xs

        xs.mark_sharding(tensor, self.mesh, spec)


def spec_of(tensor: torch.Tensor) -> str:
    """Return the sharding that `tensor` is marked with, as "{devices=[2,1]0,1}"; empty where XLA decides."""
    return sharding_spec(tensor)


def tensors_in(value: Any) -> Iterable[torch.Tensor]:
    """Yield all tensors in nested lists, tuples, mappings and dataclasses."""
    value = unwrapped(value)
    if isinstance(value, torch.Tensor):
        yield value
    elif (container := opened(value)) is not None:
        for each in container.items:
            yield from tensors_in(each)


def unwrapped(batch: Any) -> Any:
    """The mapping in an object that has one, as transformers' BatchEncoding, or the batch itself."""
    if isinstance(batch, (torch.Tensor, Mapping)):
        return batch
    data = getattr(batch, "data", None)
    return data if isinstance(data, dict) else batch
