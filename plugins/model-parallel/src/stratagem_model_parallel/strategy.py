"""`ModelParallelStrategy`: tensor parallelism, with sharded data parallelism over a second mesh dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stratagem_fsdp import ShardAxis
from stratagem_mesh import apply_axes
from stratagem_sharding.deferring import DeferringStrategy
from stratagem_sharding.kept_shards import KeptShards
from stratagem_sharding.meshes import mesh_of
from stratagem_sharding.whole_steps import reason_despite_wholes
from torch.distributed.device_mesh import DeviceMesh

from stratagem import (
    Collectives,
    Prepared,
    ReduceRequest,
    SetupRequest,
    hookimpl,
)
from stratagem_model_parallel.axis import TensorAxis
from stratagem_model_parallel.blocks import BlockPlan
from stratagem_model_parallel.mesh import DATA, TENSOR, Size, check_size, mesh_shape
from stratagem_model_parallel.plan import Plan
from stratagem_model_parallel.prepared import ModelParallelPrepared
from stratagem_model_parallel.splitting import SplitSettings, refuse_uneven_blocks

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from typing_extensions import Unpack

    from stratagem.sdk.options import ProcessGroupOptions
    from stratagem.sdk.runs import Run


class ModelParallelStrategy(DeferringStrategy):
    """Layers split among ranks (tensor and sequence parallel), copies of the model sharded (FSDP2).

    Args:
        tensor_parallel_size: ranks among which one copy of each layer is split; "auto" is the number of devices
            of a node, or what `data_parallel_size` leaves.
        data_parallel_size: copies of the model, over which its parameters are sharded; "auto" is what is left.
        parallelize: what to split and how: a dict of module names ("*" stands for any name between two dots) and
            styles, those of `torch.distributed.tensor.parallel` or names such as "colwise" and "rowwise"; or a
            function of (module, mesh) that returns such a dict, or splits the module itself. When None, the
            module's own method `parallelize(mesh)` decides, and without one the built-in plans do.
        plans: `BlockPlan`s that take precedence over the built-in ones.
        sequence_parallel: built-in plans let ranks compute shards of the sequence between attention and
            feed-forward.
        loss_parallel: compute cross entropies from shards of the vocabulary, as the last layer gives them.
        auto_wrap_policy: which modules are gathered separately if copies are sharded; as for fsdp.
        activation_checkpointing_policy: modules whose activations are computed again in backward: classes, their
            names, or a policy of `torch.distributed.fsdp.wrap`.
        sync_module_states: start from rank 0's parameters and buffers; False refuses ranks that differ.
        options: those of `ProcessGroupOptions`.

    Raises:
        ConfigError: a value that isn't one of those above.
    """

    optimizer_cuts = ("rows", "columns")

    def __init__(
        self,
        *,
        tensor_parallel_size: Size = "auto",
        data_parallel_size: Size = "auto",
        parallelize: Plan = None,
        plans: Sequence[BlockPlan] = (),
        sequence_parallel: bool = False,
        loss_parallel: bool = False,
        auto_wrap_policy: Any = None,
        activation_checkpointing_policy: Any = None,
        sync_module_states: bool = True,
        **options: Unpack[ProcessGroupOptions],
    ) -> None:
        super().__init__(**options)
        self.tensor_parallel_size = tensor_parallel_size
        self.data_parallel_size = data_parallel_size
        self.parallelize = parallelize
        self.plans = tuple(plans)
        self.sequence_parallel = sequence_parallel
        self.loss_parallel = loss_parallel
        self.auto_wrap_policy = auto_wrap_policy
        self.activation_checkpointing_policy = activation_checkpointing_policy
        self.sync_module_states = sync_module_states
        check_size("tensor_parallel_size", tensor_parallel_size)
        check_size("data_parallel_size", data_parallel_size)
        self._split_settings()

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh ("data", "tensor") of the current run.

        Raises:
            StratagemError: this process has no current run of this strategy.
        """
        return mesh_of(self.collectives)

    def check_run(self, run: Run) -> None:
        """Refuse a mesh whose sizes don't multiply to the number of processes, before any is started."""
        per_node = run.plan.processes_per_node
        mesh_shape(self.data_parallel_size, self.tensor_parallel_size, run.world_size, per_node)

    def check_module(self, module: nn.Module, run: Run) -> None:
        """Refuse blocks that can't be split equally."""
        per_node = run.plan.processes_per_node
        _, size = mesh_shape(self.data_parallel_size, self.tensor_parallel_size, run.world_size, per_node)
        refuse_uneven_blocks(module, self._split_settings(), size)

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Open the process group and the mesh. Ranks with the same part of the model read different data."""
        collectives = self.open_process_group(request)
        per_node = request.environment.local_world_size
        world_size = collectives.world_size
        shape = mesh_shape(self.data_parallel_size, self.tensor_parallel_size, world_size, per_node)
        collectives.arrange(self.open_mesh(shape, (DATA, TENSOR), request.device.type), DATA)
        return collectives

    def refuse_optimizer(self, optimizer: Optimizer, world_size: int) -> str | None:
        """Refuse no optimizer that can step full tensors, each on one rank or all on every rank."""
        reason = super().refuse_optimizer(optimizer, world_size)
        return reason_despite_wholes(self, optimizer, reason)

    def can_restore(self, shards: object) -> bool:
        """Whether the shards are those of a module with DTensors, which `setup` can restore."""
        return isinstance(shards, KeptShards)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Return a module that the axes `tensor` and `data` have transformed."""
        construction = self.pop_deferred_init(request.original_module)
        mesh = mesh_of(request.collectives)
        sizes = {DATA: mesh[DATA].size(), TENSOR: mesh[TENSOR].size()}
        axes = [
            DataAxis(
                sizes[DATA],
                auto_wrap_policy=self.auto_wrap_policy,
                activation_checkpointing_policy=self.activation_checkpointing_policy,
            ),
            TensorAxis.of(sizes[TENSOR], self._split_settings()),
        ]
        sharded, steps = apply_axes(
            request,
            axes,
            mesh,
            sizes,
            construction,
            self.sync_module_states,
            self.session.closing,
            self.open_group,
        )
        return ModelParallelPrepared(request, sharded, axes, steps)

    def _split_settings(self) -> SplitSettings:
        return SplitSettings(self.parallelize, self.plans, self.sequence_parallel, self.loss_parallel)


class DataAxis(ShardAxis):
    """The axis `shard` under the name of the data dimension of model_parallel's mesh."""

    name = DATA
