"""The mesh: which ranks share one copy of the model, and which of them have the same part of it."""

from __future__ import annotations

from typing import Union

from stratagem import ConfigError

DATA, TENSOR = "data", "tensor"
"""Names of the mesh's dimensions: copies of the model, parts of a copy."""

Size = Union[int, str]
"""A number of ranks, or "auto"."""


def check_size(name: str, size: Size) -> None:
    """Refuse an invalid size.

    Raises:
        ConfigError: neither a positive integer nor "auto".
    """
    if size != "auto" and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ConfigError(f"{name}={size!r} is no number of processes: give a positive integer or 'auto'")


def mesh_shape(
    data: Size, tensor: Size, processes: int, per_node: int, option: str = "tensor_parallel_size"
) -> tuple[int, int]:
    """Return the sizes of the data dimension and of the one within a copy of the model.

    Args:
        data: copies of the model; "auto" is what `tensor` leaves.
        tensor: ranks per copy; "auto" is what `data` leaves, or the ranks of a node if both are "auto".
        processes: number of processes of the run.
        per_node: number of processes of a node.
        option: name of the option for `tensor`, for errors.

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
            f"data_parallel_size={data!r} and {option}={tensor!r} make a mesh of {copies} × {tensors}, "
            f"and the run has {processes} processes: give sizes that multiply to {processes}, such as "
            f"{option}={_nearest(fitting, tensors)} with data_parallel_size='auto'"
        )
    return copies, tensors


def _nearest(sizes: list[int], wanted: int) -> int:
    return min(sizes, key=lambda size: (abs(size - wanted), size))
