"""The mesh: which ranks share one copy of the model, and which of them have the same part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from stratagem import ConfigError
from stratagem.collectives.connecting import quiet_connecting

if TYPE_CHECKING:
    from datetime import timedelta

DATA, TENSOR = "data", "tensor"
"""Names of the mesh's dimensions: copies of the model, parts of a copy."""

Size = Union[int, str]
"""A number of ranks, or "auto"."""


def check_size(name: str, size: Size) -> None:
    """Refuse what is no size.

    Raises:
        ConfigError: neither a positive integer nor "auto".
    """
    if size != "auto" and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ConfigError(f"{name}={size!r} is no number of processes: give a positive integer or 'auto'")


def mesh_shape(data: Size, tensor: Size, processes: int, per_node: int) -> tuple[int, int]:
    """Return the sizes of the data and the tensor dimension.

    Args:
        data: copies of the model; "auto" is what `tensor` leaves.
        tensor: ranks per copy; "auto" is what `data` leaves, or a node's ranks where both are "auto".
        processes: of the run.
        per_node: of one node.

    Raises:
        ConfigError: they don't multiply to `processes`.
    """
    if isinstance(tensor, str):
        tensors = max(1, processes // data) if isinstance(data, int) else per_node
    else:
        tensors = tensor
    copies = max(1, processes // tensors) if isinstance(data, str) else data
    if copies * tensors != processes:
        fitting = [size for size in range(1, processes + 1) if processes % size == 0]
        raise ConfigError(
            f"data_parallel_size={data!r} and tensor_parallel_size={tensor!r} make a mesh of {copies} × {tensors}, "
            f"and the run has {processes} processes: give sizes that multiply to {processes}, such as "
            f"tensor_parallel_size={_nearest(fitting, tensors)} with data_parallel_size='auto'"
        )
    return copies, tensors


def make_mesh(shape: tuple[int, int], device_type: str, timeout: timedelta) -> DeviceMesh:
    """Return the mesh ("data", "tensor"); neighbouring ranks have parts of one copy. Collective.

    Args:
        shape: its sizes; they multiply to the world size.
        device_type: as "cpu" or "cuda".
        timeout: of collectives along its dimensions. A group that torch makes for a mesh would have torch's own.
    """
    copies, tensors = shape
    ranks = [[copy * tensors + part for part in range(tensors)] for copy in range(copies)]
    with quiet_connecting():
        across = _own_group([[row[part] for row in ranks] for part in range(tensors)], timeout)
        within = _own_group(ranks, timeout)
    return DeviceMesh.from_group([across, within], device_type, mesh=ranks, mesh_dim_names=(DATA, TENSOR))


def _own_group(groups: list[list[int]], timeout: timedelta) -> dist.ProcessGroup:
    """Every rank makes all groups, and gets the one that it is in."""
    own = [
        group for ranks in groups if (group := dist.new_group(ranks, timeout)) and dist.get_rank() in ranks
    ]
    made: dist.ProcessGroup = own[0]
    return made


def _nearest(sizes: list[int], wanted: int) -> int:
    return min(sizes, key=lambda size: (abs(size - wanted), size))
