"""The base of strategies whose ranks talk through a `torch.distributed` group."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stratagem.collectives.deadline import deadline
from stratagem.errors import ConfigError
from stratagem.launchers.base import check_start_method
from stratagem.strategies.base import ParallelStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import timedelta

    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from stratagem.accelerators.base import Accelerator
    from stratagem.checkpoint.base import Checkpointer
    from stratagem.collectives.base import Collectives
    from stratagem.collectives.process_group import ProcessGroupCollectives
    from stratagem.environments.base import Environment
    from stratagem.plugin.requests import ReduceRequest
    from stratagem.precision.base import Precision

BACKEND_VARIABLE = "STRATAGEM_PROCESS_GROUP_BACKEND"
"""Names the backend of process groups, for strategies that are given none."""
_FORMER_VARIABLE = "PL_TORCH_DISTRIBUTED_BACKEND"


class ProcessGroupStrategy(ParallelStrategy):
    """Base of strategies with a process per device, in one group.

    Args:
        accelerator: an accelerator object or name that wins over the run's choice.
        parallel_devices: this node's devices, one per process.
        cluster_environment: an environment, its class or its name; wins over detection.
        checkpoint_io: a checkpointer, or what makes the run's from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        process_group_backend: as "gloo" or "nccl"; when None what STRATAGEM_PROCESS_GROUP_BACKEND names, or else the
            accelerator's own.
        timeout: after which a collective that a rank doesn't join fails; 30 minutes when None.
        timeout_s: the same in seconds, for the command line.
        start_method: "forkserver", "popen", "spawn" or "fork".

    Raises:
        ConfigError: a value that isn't one of those above.
    """

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: Environment | type[Environment] | str | None = None,
        checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
        start_method: str = "forkserver",
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin)
        self.process_group_backend = process_group_backend or os.environ.get(BACKEND_VARIABLE) or None
        if self.process_group_backend is None and _FORMER_VARIABLE in os.environ:
            former = f"{_FORMER_VARIABLE}={os.environ[_FORMER_VARIABLE]}"
            raise ConfigError(f"{former} is now called {BACKEND_VARIABLE}: set that one, and unset the other")
        self.timeout = deadline(timeout, timeout_s)
        self.start_method = check_start_method(start_method)

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

        Its collectives fail after this strategy's timeout; those of a group that torch makes by itself
        would after torch's own.

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
