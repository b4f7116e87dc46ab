"""The base of strategies whose ranks talk through a `torch.distributed` group."""

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
"""Names the backend of process groups, for strategies that are given none."""
_FORMER_VARIABLE = "PL_TORCH_DISTRIBUTED_BACKEND"


class ProcessGroupStrategy(ParallelStrategy):
    """Base of strategies with a process per device, in one group.

    Args:
        options: those of `ProcessGroupOptions`.

    Raises:
        ConfigError: a value that isn't allowed.
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

        Its collectives fail after this strategy's timeout; those of a group that torch makes
        itself fail after torch's default.

        Returns:
            The group that this rank is in; None where it is in none.
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
        """Arrange all ranks of the run in dimensions, neighbours along the last. Collective.

        Args:
            shape: multiplies to the number of ranks.
            names: of the dimensions.
            device_type: as "cpu" or "cuda".
        """
        import torch
        from torch.distributed.device_mesh import DeviceMesh

        ranks = torch.arange(prod(shape)).view(*shape)
        groups = [self.open_group(ranks_along(shape, [dim])) for dim in range(len(shape))]
        return DeviceMesh.from_group(groups, device_type, mesh=ranks.tolist(), mesh_dim_names=tuple(names))


def ranks_along(shape: Sequence[int], dims: Sequence[int]) -> list[list[int]]:
    """Return the ranks that differ in some dimensions of a mesh alone, a list for each place in the others.

    Args:
        shape: of the mesh, whose ranks are counted with the last dimension fastest.
        dims: in ascending order.
    """
    import torch

    others = [dim for dim in range(len(shape)) if dim not in dims]
    ranks = torch.arange(prod(shape)).view(*shape).permute(*others, *dims)
    found: list[list[int]] = ranks.reshape(-1, prod(shape[dim] for dim in dims)).tolist()
    return found
