"""The base of strategies whose ranks communicate through a `torch.distributed` group."""

from __future__ import annotations

import os
from math import prod
from typing import TYPE_CHECKING, Any

from stratagem.collectives.deadline import deadline
from stratagem.errors import ConfigError
from stratagem.launchers.base import check_start_method
from stratagem.strategies.base import ParallelStrategy
from stratagem.strategies.options import ParallelOptions, ProcessGroupOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from typing_extensions import Unpack

    from stratagem.collectives.base import Collectives
    from stratagem.collectives.process_group import ProcessGroupCollectives
    from stratagem.plugin.requests import ReduceRequest

BACKEND_VARIABLE = "STRATAGEM_PROCESS_GROUP_BACKEND"
"""Environment variable that names the backend of process groups, for strategies without a `process_group_backend`."""
_FORMER_VARIABLE = "PL_TORCH_DISTRIBUTED_BACKEND"


class ProcessGroupStrategy(ParallelStrategy):
    """Base of strategies with one process per device, all in one group.

    Args:
        options: see `ProcessGroupOptions`.

    Raises:
        ConfigError: an option has a value that isn't allowed.
    """

    def __init__(self, **options: Unpack[ProcessGroupOptions]) -> None:
        self.process_group_backend = (
            options.pop("process_group_backend", None) or os.environ.get(BACKEND_VARIABLE) or None
        )
        if self.process_group_backend is None and _FORMER_VARIABLE in os.environ:
            former = f"{_FORMER_VARIABLE}={os.environ[_FORMER_VARIABLE]}"
            raise ConfigError(f"{former} is now called {BACKEND_VARIABLE}: set that one, and unset the other")
        self.timeout = deadline(options.pop("timeout", None), options.pop("timeout_s", None))
        self.start_method = check_start_method(options.pop("start_method", self.start_method))
        shared: ParallelOptions = options
        super().__init__(**shared)

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Open the process group. Collective."""
        return self.open_process_group(request)

    def open_process_group(self, request: ReduceRequest) -> ProcessGroupCollectives:
        """Open the group of all ranks with this strategy's backend and timeout. Collective."""
        from stratagem.collectives.process_group import ProcessGroupCollectives

        backend = self.process_group_backend or request.accelerator.backend
        return ProcessGroupCollectives(request.environment, request.device, backend, self.timeout)

    def open_group(self, groups: Iterable[Sequence[int]]) -> Any:
        """Open a `torch.distributed` group for each list of ranks. Collective among all ranks of the run.

        Collectives of these groups use this strategy's timeout. Those of a group that torch opens itself use torch's
        default.

        Returns:
            The group that this rank is in; None if it is in none.
        """
        import torch.distributed as dist

        from stratagem.collectives.connecting import quiet_connecting

        own = None
        with quiet_connecting():
            for ranks in groups:
                group = dist.new_group(list(ranks), self.timeout)
                if dist.get_rank() in ranks:
                    own = group
        return own

    def open_mesh(self, shape: Sequence[int], names: Sequence[str], device_type: str) -> DeviceMesh:
        """Return a mesh of all ranks of the run. Ranks along the last dimension are neighbours. Collective.

        Args:
            shape: the dimensions' sizes, which multiply to the number of ranks.
            names: the dimensions' names.
            device_type: such as "cpu" or "cuda".
        """
        import torch
        from torch.distributed.device_mesh import DeviceMesh

        ranks = torch.arange(prod(shape)).view(*shape)
        groups = [self.open_group(ranks_along(shape, [dim])) for dim in range(len(shape))]
        return DeviceMesh.from_group(groups, device_type, mesh=ranks.tolist(), mesh_dim_names=tuple(names))


def ranks_along(shape: Sequence[int], dims: Sequence[int]) -> list[list[int]]:
    """Return groups of ranks: those of a group differ only in some dimensions of a mesh.

    Args:
        shape: of the mesh. Ranks are numbered with the last dimension fastest.
        dims: the dimensions in which ranks of a group differ, in ascending order.
    """
    import torch

    others = [dim for dim in range(len(shape)) if dim not in dims]
    ranks = torch.arange(prod(shape)).view(*shape).permute(*others, *dims)
    found: list[list[int]] = ranks.reshape(-1, prod(shape[dim] for dim in dims)).tolist()
    return found
