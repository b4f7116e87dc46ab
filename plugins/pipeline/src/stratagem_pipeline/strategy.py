"""`PipelineStrategy`: layers in stages on several devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from stratagem_sharding.deferring import DeferringStrategy
from stratagem_sharding.meshes import mesh_of

from stratagem import (
    Collectives,
    ConfigError,
    Prepared,
    ReduceRequest,
    SetupRequest,
    hookimpl,
)
from stratagem.sdk.collectives import GroupCollectives
from stratagem_pipeline.balance import read_balance
from stratagem_pipeline.building import divide
from stratagem_pipeline.groups import among_copies
from stratagem_pipeline.prepared import PipelinePrepared
from stratagem_pipeline.schedules import schedule_named
from stratagem_pipeline.settings import check_layers, check_settings, refuse_recomputation

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Unpack

    from stratagem.sdk.options import ProcessGroupOptions
    from stratagem.sdk.runs import Run


class PipelineStrategy(DeferringStrategy):
    """Pipeline parallelism on torch.distributed.pipelining, in one process per device.

    Args:
        schedule: "gpipe", "1f1b", "looped_bfs", "interleaved_1f1b", "interleaved_zero_bubble", "zbv" or
            "dualpipev", or the name of torch's class; "1f1b" when None.
        micro_batches: number of micro-batches per batch; None is the number of stages.
        pipeline_module: name of the `nn.Sequential` or `nn.ModuleList` in the user's module that is pipelined; None
            for the only one.
        split_points: names of submodules at which stages begin. The pipelined module is then traced, and
            needn't be a Sequential.
        balance: layers of each stage, as [2, 3], or the cost to distribute evenly: "parameters", "activations"
            or "time". The last two are measured on a micro-batch.
        stages_per_rank: for schedules with several stages per rank; None is 2.
        activation_checkpointing: keep only each layer's input, and compute the layer again in backward.
        pipeline_parallel_size: ranks that share a copy of the model; "auto" uses all that
            `data_parallel_size` leaves.
        data_parallel_size: copies of the model, each with a part of every batch.
        batch_statistics_per_part: allow batch norms with several micro-batches. Each micro-batch is normalized
            separately and updates the running statistics, as in GPipe. By default, such batch norms are
            refused.
        options: those of `ProcessGroupOptions`.

    Raises:
        ConfigError: a value that isn't one of those above.
    """

    optimizer_cuts = ("parameters",)

    def __init__(
        self,
        *,
        schedule: str | None = None,
        micro_batches: int | None = None,
        pipeline_module: str | None = None,
        split_points: Sequence[str] | None = None,
        balance: Sequence[int] | str = "parameters",
        stages_per_rank: int | None = None,
        activation_checkpointing: bool = False,
        pipeline_parallel_size: int | str = "auto",
        data_parallel_size: int = 1,
        batch_statistics_per_part: bool = False,
        **options: Unpack[ProcessGroupOptions],
    ) -> None:
        super().__init__(**options)
        self.schedule = schedule_named("1f1b" if schedule is None else schedule)
        self.micro_batches = micro_batches
        self.pipeline_module = pipeline_module
        self.split_points = None if split_points is None else list(split_points)
        self.balance = read_balance(balance)
        self.stages_per_rank = self.schedule.stages_per_rank(stages_per_rank)
        self.activation_checkpointing = activation_checkpointing
        self.pipeline_parallel_size = pipeline_parallel_size
        self.data_parallel_size = data_parallel_size
        self.batch_statistics_per_part = batch_statistics_per_part
        refuse_recomputation(self)

    def check_run(self, run: Run) -> None:
        """Refuse sizes, schedules and balances that don't go with the number of processes."""
        check_settings(self, self.sizes(run.world_size)[1])

    def check_module(self, module: nn.Module, run: Run) -> None:
        """Refuse a module with fewer layers than stages."""
        check_layers(self, module, self.sizes(run.world_size)[1])

    def sizes(self, world_size: int) -> tuple[int, int]:
        """Return how many copies there are, and how many ranks share one.

        Raises:
            ConfigError: they don't multiply to the world size.
        """
        copies, size = self.data_parallel_size, self.pipeline_parallel_size
        if size == "auto" and isinstance(copies, int):
            size = max(1, world_size // max(1, copies))
        if isinstance(copies, int) and isinstance(size, int) and copies > 0 and copies * size == world_size:
            return copies, size
        raise ConfigError(
            f"data_parallel_size={copies} × pipeline_parallel_size={self.pipeline_parallel_size} doesn't make the "
            f"{world_size} processes of this run: choose sizes whose product is {world_size}"
        )

    def module_init_context(self) -> AbstractContextManager[Any] | None:
        """Construct on the "meta" device. Layers get their values on the ranks of their stages."""
        # Tracing needs real tensors.
        return super().module_init_context() if self.split_points is None else None

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Open the process group, with subgroups for the ranks of each copy and for data parallelism."""
        collectives = self.open_process_group(request)
        copies, size = self.sizes(collectives.world_size)
        mesh = self.open_mesh((copies, size), ("data", "pipe"), request.device.type)
        collectives.arrange(mesh, "data")
        return collectives

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Return a module of which this rank has its own stages."""
        construction = self.pop_deferred_init(request.original_module)
        mesh = mesh_of(request.collectives)
        pipe = GroupCollectives(mesh.get_group("pipe"), request.device)
        pipeline = divide(request, self, pipe, construction).pipeline(request, pipe)
        return PipelinePrepared(request, pipeline, among_copies(mesh, "pipe", self.open_group))
