"""Process groups with the same ranks in every copy of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def among_copies(
    mesh: DeviceMesh, name: str, open_group: Callable[[Iterable[Sequence[int]]], Any]
) -> Callable[[Sequence[int]], Any]:
    """Return a function that opens a group of some ranks in each copy, and returns this rank's group.

    Args:
        mesh: all ranks of the run.
        name: of the mesh dimension along which the ranks of one copy lie.
        open_group: opens groups of ranks of the run, and returns this rank's group. Collective.
    """
    dim = (mesh.mesh_dim_names or ()).index(name)
    copies = mesh.mesh.movedim(dim, -1).reshape(-1, mesh.mesh.shape[dim]).tolist()

    def open_among(ranks: Sequence[int]) -> Any:
        return open_group([[copy[rank] for rank in ranks] for copy in copies])

    return open_among
