"""The base of strategies whose ranks talk through a `torch.distributed` group."""

from __future__ import annotations

import os
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

    def open_mesh(self, shape: tuple[int, int], names: tuple[str, str], device_type: str) -> DeviceMesh:
        """Arrange all ranks of the run in two dimensions, neighbours along the second. Collective.

        Args:
            shape: multiplies to the number of ranks.
            names: of the dimensions.
            device_type: as "cpu" or "cuda".
        """
        from torch.distributed.device_mesh import DeviceMesh

        rows, columns = shape
        ranks = [[row * columns + column for column in range(columns)] for row in range(rows)]
        across = self.open_group([[row[column] for row in ranks] for column in range(columns)])
        within = self.open_group(ranks)
        return DeviceMesh.from_group([across, within], device_type, mesh=ranks, mesh_dim_names=names)
