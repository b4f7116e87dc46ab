"""`mesh_of`: the device mesh of a strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.errors import CombinationError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from stratagem import Collectives

__all__ = ["mesh_of"]


def mesh_of(collectives: Collectives) -> DeviceMesh:
    """Return the device mesh of a strategy's collectives, even if something wraps them.

    Raises:
        CombinationError: a wrapper of the hook `reduce` hides it.
    """
    mesh = collectives.mesh
    if mesh is None:
        raise CombinationError(
            f"{type(collectives).__name__} has no `mesh`, and the strategy has arranged its ranks in one: derive the "
            "class from CollectivesWrapper, or return the wrapped one's `mesh`"
        )
    return mesh
