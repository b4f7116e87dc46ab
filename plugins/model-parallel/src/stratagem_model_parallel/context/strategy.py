"""`ContextParallelStrategy`: data parallelism with sequences sharded among the ranks of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from stratagem_ddp import DDPOptions, DDPStrategy
from stratagem_sharding.meshes import mesh_of
from torch.distributed.device_mesh import DeviceMesh

from stratagem import (
    Collectives,
    ConfigError,
    Prepared,
    ReduceRequest,
    SetupRequest,
    hookimpl,
)
from stratagem_model_parallel.context.live import sequences_cut_among
from stratagem_model_parallel.context.plan import ContextPlan, Plan
from stratagem_model_parallel.context.ranks import CONTEXT, SequenceRanks
from stratagem_model_parallel.context.settings import ContextSettings
from stratagem_model_parallel.context.taken_gradients import complete_taken_gradients
from stratagem_model_parallel.mesh import DATA, Size, check_size, mesh_shape

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.runs import Run

REFUSED = (
    "ddp_comm_state",
    "ddp_comm_hook",
    "ddp_comm_wrapper",
    "model_averaging_period",
    "period_group_size",
)
"""Settings of ddp with which replicas that shard sequences would differ, or lose gradients."""


class ContextParallelStrategy(DDPStrategy):
    """Context parallelism for long sequences: each rank of a group computes its shard; attention sees all of it.

    Every rank has a replica. Gradients are averaged as under ddp.

    Args:
        context_parallel_size: ranks that read the same batches and shard their sequences; "auto" is the number of
            devices of a node, or what `data_parallel_size` leaves.
        data_parallel_size: number of such groups, which read different batches; "auto" is what is left.
        attention: "ulysses" (each rank computes some of the heads for the full sequence) or "ring" (each rank
            computes all heads for its own tokens, and keys and values pass from rank to rank).
        parallelize: which modules compute on shards: a dict of module names ("*" stands for any name between two
            dots) and styles: "block" for one with attention, "tokenwise" for one without, or for a block a dict of
            its forward's arguments and their dimension that is the sequence; or a function of (module, mesh) that
            returns such a dict. When None, the module's own method `parallelize(mesh)` decides, and without one the
            built-in plans do.
        plans: `ContextPlan`s that take precedence over the built-in ones.
        options: those of `DDPOptions`.

    Raises:
        ConfigError: a value that isn't one of those above.
    """

    def __init__(
        self,
        *,
        context_parallel_size: Size = "auto",
        data_parallel_size: Size = "auto",
        attention: Literal["ulysses", "ring"] = "ulysses",
        parallelize: Plan = None,
        plans: Sequence[ContextPlan] = (),
        **options: Unpack[DDPOptions],
    ) -> None:
        refused = next((name for name in REFUSED if name in options), None)
        if refused is not None:
            raise ConfigError(
                f"context_parallel has no setting {refused!r}: replicas that share sequences out must stay equal, "
                "and their gradients whole; leave it out, or choose ddp"
            )
        super().__init__(**options)
        self.context_parallel_size = context_parallel_size
        self.data_parallel_size = data_parallel_size
        self.settings = ContextSettings(attention, parallelize, tuple(plans))
        check_size("context_parallel_size", context_parallel_size)
        check_size("data_parallel_size", data_parallel_size)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh ("data", "context") of the current run.

        Raises:
            StratagemError: this process has no current run of this strategy.
        """
        return mesh_of(self.collectives)

    def check_run(self, run: Run) -> None:
        """Refuse a mesh whose sizes don't multiply to the number of processes, before any is started."""
        super().check_run(run)
        self._shape(run.world_size, run.plan.processes_per_node)

    def plan_lines(self) -> Sequence[str]:
        """Say how attention is computed."""
        return [f"sequences are cut among ranks, with attention by {self.settings.attention}"]

    def _shape(self, processes: int, per_node: int) -> tuple[int, int]:
        sizes = self.data_parallel_size, self.context_parallel_size
        return mesh_shape(*sizes, processes, per_node, "context_parallel_size")

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Open the process group and the mesh. Ranks that shard a sequence read the same data."""
        collectives = self.open_process_group(request)
        shape = self._shape(collectives.world_size, request.environment.local_world_size)
        mesh = self.open_mesh(shape, (DATA, CONTEXT), request.device.type)
        collectives.arrange(mesh, DATA)
        ranks = SequenceRanks.of(mesh)
        self.session.closing.enter_context(sequences_cut_among(ranks if ranks.size > 1 else None))
        return collectives

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Return a replica whose blocks compute on shards of the sequence."""
        mesh, closing = mesh_of(request.collectives), self.session.closing
        self.settings.cut(request.original_module, mesh, closing)
        prepared = super().setup(request)
        parameters = prepared.original_module.parameters()
        complete_taken_gradients(parameters, SequenceRanks.of(mesh), closing)
        return prepared
