"""`FSDPStrategy`: parameters, gradients and optimizer states in shards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
from stratagem_sharding.deferring import DeferringStrategy
from stratagem_sharding.kept_shards import KeptShards
from stratagem_sharding.rank_buffers import check_buffers
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
    Accelerator,
    Capabilities,
    Checkpointer,
    Collectives,
    Environment,
    Precision,
    Prepared,
    SetupRequest,
    hookimpl,
)
from stratagem_fsdp import options
from stratagem_fsdp.prepared import FSDPPrepared
from stratagem_fsdp.sharding import shard


class FSDPStrategy(DeferringStrategy):
    """Fully sharded data parallel, on torch's `fully_shard` (FSDP2), in one process per device.

    Args:
        accelerator: an accelerator object or name that wins over the run's choice.
        parallel_devices: this node's devices, one per process.
        cluster_environment: an environment, its class or its name; wins over detection.
        checkpoint_io: a checkpointer, or what makes the run's from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        process_group_backend: as "gloo" or "nccl"; the accelerator's own when None.
        timeout: after which a collective that a rank doesn't join fails; 30 minutes when None.
        auto_wrap_policy: which modules are gathered by themselves: classes or their names, a policy of
            `torch.distributed.fsdp.wrap`, or None for the elements of every ModuleList and the composed
            elements of every Sequential. What is left makes one more unit.
        cpu_offload: keep parameters, gradients and optimizer states on the CPU, where optimizers then
            step: True, torch's `CPUOffload` or its `CPUOffloadPolicy`.
        mixed_precision: dtypes in which parameters are gathered and gradients reduced, torch's
            `MixedPrecisionPolicy` or `MixedPrecision`; None follows the run's precision.
        sharding_strategy: as torch's enum or its name. "FULL_SHARD" gathers parameters for each use;
            "SHARD_GRAD_OP" keeps them from forward to backward; "HYBRID_SHARD" shards within a node and
            replicates across nodes; "NO_SHARD" replicates.
        backward_prefetch: torch's enum or its name; `fully_shard` always does as "BACKWARD_PRE".
        forward_prefetch: gather the next unit while one computes; nothing on a CPU.
        limit_all_gathers: True is how `fully_shard` works.
        use_orig_params: True is how `fully_shard` works.
        param_init_fn: called with each module that has tensors on "meta", to make and fill them.
        sync_module_states: start from rank 0's parameters and buffers; False refuses ranks that differ.
        device_mesh: (replicas, shards), or a DeviceMesh, instead of what `sharding_strategy` makes.
        activation_checkpointing_policy: modules whose activations are computed again in backward; forms
            as for `auto_wrap_policy`, but None is none.
        timeout_s: `timeout` in seconds, for the command line.
        start_method: "forkserver", "popen", "spawn" or "fork".
        buffers: "equal" gives all ranks rank 0's after training forwards, and refuses buffers other than running
            statistics that have come to differ; by "local" each rank keeps its own, also in checkpoints.
        kwargs: `ignored_modules`, whose parameters every rank keeps whole: modules of the model, or forms as for
            `auto_wrap_policy`; and `reshard_after_forward`, as `fully_shard` takes it, which then decides for every
            unit.

    Raises:
        ConfigError: a keyword that doesn't exist or is called otherwise here; a value that isn't one of those above.
    """

    optimizer_cuts = ("rows",)

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: Environment | type[Environment] | str | None = None,
        checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = None,
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
        start_method: str = "forkserver",
        timeout_s: float | None = None,
        buffers: str = "equal",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            accelerator,
            parallel_devices,
            cluster_environment,
            checkpoint_io,
            precision_plugin,
            process_group_backend=process_group_backend,
            timeout=timeout,
            timeout_s=timeout_s,
            start_method=start_method,
        )
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
        options.refuse_unknown(
            kwargs, [name for name in signature(FSDPStrategy).parameters if name != "kwargs"]
        )
        self.ignored_modules: Any = kwargs.get("ignored_modules")
        self.reshard_after_forward: bool | int | None = kwargs.get("reshard_after_forward")
        options.offloads(cpu_offload)
        options.mixed_precision(mixed_precision, Precision())

    def refine_capabilities(self, declared: Capabilities) -> Capabilities:
        """A mesh that is given is for one number of processes; without shards, optimizers have whole tensors."""
        features = declared.features
        if self.device_mesh is not None:
            features -= {"elastic"}
        if self.sharding_strategy == "NO_SHARD":
            features |= {"whole_optimizer"}
        return replace(declared, features=features)

    def module_init_context(self) -> AbstractContextManager[Any] | None:
        """Construct on the "meta" device, recorded unless `param_init_fn` is going to fill it."""
        return super().module_init_context() if self.param_init_fn is None else torch.device("meta")

    def takes_up(self, shards: object) -> bool:
        """What left a module of DTensors: this strategy, or another on `fully_shard`."""
        return isinstance(shards, KeptShards)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module in shards."""
        self._say_what_is_moot(request)
        construction = self.pop_deferred_init(request.original_module)
        return FSDPPrepared(request, shard(request, self, construction), self.buffers)

    def _say_what_is_moot(self, request: SetupRequest) -> None:
        notes = options.moot_notes(
            backward_prefetch=self.backward_prefetch,
            forward_prefetch=self.forward_prefetch,
            limit_all_gathers=self.limit_all_gathers,
            use_orig_params=self.use_orig_params,
            mixed_precision=self.mixed_precision,
            device=request.device,
        )
        if notes and request.collectives.rank == 0:
            warnings.warn(f"fsdp has no use for {'; '.join(notes)}", UserWarning, stacklevel=2)
