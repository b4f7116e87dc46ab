"""`FSDPStrategy`: parameters, gradients and optimizer states in shards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

import torch
from stratagem_sharding.deferring import DeferringStrategy
from stratagem_sharding.kept_shards import KeptShards
from stratagem_sharding.rank_buffers import RankBuffers, check_buffers
from stratagem_sharding.whole_steps import reason_despite_wholes
from stratagem_sharding.wrap_policy import Policy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
)

from stratagem import (
    Capabilities,
    Precision,
    Prepared,
    SetupRequest,
    hookimpl,
)
from stratagem.sdk.options import ProcessGroupOptions, split_options
from stratagem_fsdp import options
from stratagem_fsdp.prepared import FSDPPrepared
from stratagem_fsdp.sharding import shard

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from typing_extensions import Unpack


class FSDPStrategy(DeferringStrategy):
    """Fully sharded data parallel, on torch's `fully_shard` (FSDP2), in one process per device.

    Args:
        auto_wrap_policy: which modules are gathered separately: classes or their names, a policy of
            `torch.distributed.fsdp.wrap`, or None for the elements of every ModuleList and the composed
            elements of every Sequential. The remaining parameters form one more unit.
        cpu_offload: keep parameters, gradients and optimizer states on the CPU, and step there: True, torch's
            `CPUOffload` or its `CPUOffloadPolicy`.
        mixed_precision: dtypes in which parameters are gathered and gradients reduced, torch's
            `MixedPrecisionPolicy` or `MixedPrecision`; None follows the run's precision.
        sharding_strategy: as torch's enum or its name. "FULL_SHARD" gathers parameters for each use;
            "SHARD_GRAD_OP" keeps them from forward to backward; "HYBRID_SHARD" shards within a node and
            replicates across nodes; "NO_SHARD" replicates.
        backward_prefetch: torch's enum or its name; `fully_shard` always works as "BACKWARD_PRE".
        forward_prefetch: gather the next unit while one computes; no effect on a CPU.
        limit_all_gathers: no effect: `fully_shard` always works as with True.
        use_orig_params: no effect: `fully_shard` always works as with True.
        param_init_fn: called with each module that has tensors on "meta"; it must create and fill them.
        sync_module_states: start from rank 0's parameters and buffers; False refuses ranks that differ.
        device_mesh: (replicas, shards), or a DeviceMesh, instead of the mesh that `sharding_strategy` implies.
        activation_checkpointing_policy: modules whose activations are computed again in backward; forms
            as for `auto_wrap_policy`, but None recomputes nothing.
        buffers: "equal" gives all ranks rank 0's buffers after training forwards, and refuses buffers that differ,
            except running statistics. With "local", each rank keeps its own buffers, also in checkpoints.
        ignored_modules: modules whose parameters aren't sharded: modules of the model, or forms as for
            `auto_wrap_policy`.
        reshard_after_forward: as `fully_shard` takes it, for every unit; None follows `sharding_strategy`.
        further: options of `ProcessGroupOptions`.

    Raises:
        ConfigError: a keyword doesn't exist or has another name here, or a value isn't one of those above.
    """

    optimizer_cuts = ("rows",)

    def __init__(
        self,
        *,
        auto_wrap_policy: Policy = None,
        cpu_offload: bool | CPUOffload | OffloadPolicy = False,
        mixed_precision: MixedPrecision | MixedPrecisionPolicy | None = None,
        sharding_strategy: ShardingStrategy | str = "FULL_SHARD",
        backward_prefetch: BackwardPrefetch | str | None = None,
        forward_prefetch: bool = False,
        limit_all_gathers: bool = True,
        use_orig_params: bool = True,
        param_init_fn: Callable[[nn.Module], Any] | None = None,
        sync_module_states: bool = True,
        device_mesh: DeviceMesh | Sequence[int] | None = None,
        activation_checkpointing_policy: Policy = None,
        buffers: Literal["equal", "local"] = "equal",
        ignored_modules: Policy | Iterable[nn.Module] = None,
        reshard_after_forward: bool | int | None = None,
        **further: Unpack[ProcessGroupOptions],
    ) -> None:
        shared, unknown = split_options(ProcessGroupOptions, further)
        options.refuse_unknown(unknown, signature(FSDPStrategy).parameters)
        super().__init__(**shared)
        self.auto_wrap_policy = auto_wrap_policy
        self.cpu_offload = cpu_offload
        self.mixed_precision = mixed_precision
        self.sharding_strategy = options.sharding_strategy(sharding_strategy)
        self.backward_prefetch = options.prefetch_name(backward_prefetch)
        self.forward_prefetch = forward_prefetch
        self.limit_all_gathers = limit_all_gathers
        self.use_orig_params = use_orig_params
        self.param_init_fn = param_init_fn
        self.sync_module_states = sync_module_states
        self.device_mesh = device_mesh
        self.activation_checkpointing_policy = activation_checkpointing_policy
        check_buffers(buffers)
        self.buffers = buffers
        self.ignored_modules: Any = ignored_modules
        self.reshard_after_forward = reshard_after_forward
        options.offloads(cpu_offload)
        options.mixed_precision(mixed_precision, Precision())

    def refine_capabilities(self, declared: Capabilities) -> Capabilities:
        """A given mesh fixes the number of processes; without sharding, optimizers have full tensors."""
        features = declared.features
        if self.device_mesh is not None:
            features -= {"elastic"}
        if self.sharding_strategy == "NO_SHARD":
            features |= {"whole_optimizer"}
        return replace(declared, features=features)

    def module_init_context(self) -> AbstractContextManager[Any] | None:
        """Construct on the "meta" device; record initial values unless `param_init_fn` fills the tensors."""
        return super().module_init_context() if self.param_init_fn is None else torch.device("meta")

    def refuse_optimizer(self, optimizer: Optimizer, world_size: int) -> str | None:
        """Refuse no optimizer that can step full tensors, each on one rank or all on every rank."""
        reason = super().refuse_optimizer(optimizer, world_size)
        return reason_despite_wholes(self, optimizer, reason)

    def can_restore(self, shards: object) -> bool:
        """Whether the shards were left by this strategy or another one on `fully_shard`."""
        return isinstance(shards, KeptShards)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Return the sharded module."""
        self._warn_of_ignored_options(request)
        construction = self.pop_deferred_init(request.original_module)
        sharded = shard(request, self, construction)
        is_local = self.buffers == "local"
        rank_buffers = RankBuffers(request.original_module, request.collectives, local=is_local)
        return FSDPPrepared(request, sharded, rank_buffers)

    def _warn_of_ignored_options(self, request: SetupRequest) -> None:
        notes = options.ignored_option_warnings(
            backward_prefetch=self.backward_prefetch,
            forward_prefetch=self.forward_prefetch,
            limit_all_gathers=self.limit_all_gathers,
            use_orig_params=self.use_orig_params,
            mixed_precision=self.mixed_precision,
            device=request.device,
        )
        if notes and request.collectives.rank == 0:
            warnings.warn(f"fsdp has no use for {'; '.join(notes)}", UserWarning, stacklevel=2)
