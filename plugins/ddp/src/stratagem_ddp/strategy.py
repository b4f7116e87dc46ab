"""`DDPStrategy`: a replica per device, gradients averaged while backward runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

import torch
from stratagem_sharding.rank_buffers import check_buffers
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn.parallel import DistributedDataParallel

from stratagem import (
    Capabilities,
    ConfigError,
    Prepared,
    ProcessGroupStrategy,
    SetupRequest,
    hookimpl,
)
from stratagem.sdk.options import ProcessGroupOptions, split_options
from stratagem_ddp.comm_hooks import COMPRESSED, settings_of
from stratagem_ddp.local_sgd import check_levels, fitting_levels, fitting_subgroup
from stratagem_ddp.power_sgd import PickledPowerSGD
from stratagem_ddp.prepared import DDPPrepared
from stratagem_ddp.replica import ManualDDPPrepared, ReplicaPrepared

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.runs import Run

OWN = ("module", "device_ids", "output_device", "process_group", "device_mesh")


class DDPOptions(ProcessGroupOptions, total=False):
    """Options of `DDPStrategy` and of strategies derived from it.

    All except `buffers` are keywords of `torch.nn.parallel.DistributedDataParallel`; older torch lacks some.
    """

    buffers: Literal["equal", "local"]
    """"equal" gives all ranks rank 0's buffers in each training forward, and refuses buffers that differ, except
    running statistics. With "local", each rank keeps its own buffers, also in checkpoints. Torch's
    `forward_sync_buffers=False` means the same as "local"."""
    batched_grad_copy: bool
    broadcast_buffers: bool | None
    bucket_cap_mb: float | None
    bucket_cap_mb_list: list[int] | None
    check_reduction: bool
    delay_all_reduce_named_params: Any
    dim: int
    find_unused_parameters: bool
    forward_sync_buffers: bool | None
    gradient_as_bucket_view: bool
    init_sync: bool
    mixed_precision: Any
    param_to_hook_all_reduce: Any
    skip_all_reduce_unused_params: bool
    static_graph: bool


class DDPStrategy(ProcessGroupStrategy):
    """DistributedDataParallel in one process per device, on one node or several.

    Args:
        ddp_comm_state: settings of a named `ddp_comm_hook`, as {"matrix_approximation_rank": 2}; for a hook
            function, its state, as `PowerSGDState` or `PostLocalSGDState`.
        ddp_comm_hook: reduces a bucket of gradients instead of DDP's own all-reduce: "fp16", "bf16",
            "powersgd", "post_local_sgd", or a function; see `torch.distributed.algorithms.ddp_comm_hooks`.
        ddp_comm_wrapper: applied to `ddp_comm_hook`, as `fp16_compress_wrapper`.
        model_averaging_period: average parameters over ranks every n optimizer steps; with
            "post_local_sgd", from its `start_localSGD_iter` on.
        period_group_size: average parameters in groups of neighbouring ranks, as {4: 2, 8: 4}: every 4
            steps in groups of 2, every 8 in groups of 4; "auto" derives it from the number of ranks.
        options: those of `DDPOptions`: `ProcessGroupOptions`, `buffers` and keywords of
            `torch.nn.parallel.DistributedDataParallel`.

    Raises:
        ConfigError: neither this class nor DistributedDataParallel has a keyword, or values contradict each other.
    """

    buffers: Literal["equal", "local"] = "equal"

    def __init__(
        self,
        *,
        ddp_comm_state: object | None = None,
        ddp_comm_hook: Callable[..., Any] | str | None = None,
        ddp_comm_wrapper: Callable[..., Any] | None = None,
        model_averaging_period: int | None = None,
        period_group_size: Mapping[int, int] | str | None = None,
        **options: Unpack[DDPOptions],
    ) -> None:
        shared, kwargs = split_options(ProcessGroupOptions, options)
        super().__init__(**shared)
        self.ddp_comm_state = ddp_comm_state
        self.ddp_comm_hook = ddp_comm_hook
        self.ddp_comm_wrapper = ddp_comm_wrapper
        self.model_averaging_period = model_averaging_period
        self.period_group_size = period_group_size
        self.init_sync = bool(kwargs.pop("init_sync", True))
        buffers = kwargs.pop("buffers", "equal")
        check_buffers(buffers)
        # torch 2.13 renamed broadcast_buffers to forward_sync_buffers, and warns about the old name.
        known = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
        synced = [kwargs[name] for name in ("broadcast_buffers", "forward_sync_buffers") if name in kwargs]
        self.buffers = "local" if False in synced else buffers
        if self.buffers == "local" and not synced:
            kwargs["forward_sync_buffers" if known else "broadcast_buffers"] = False
        self.ddp_kwargs = kwargs
        self._check()

    def __getstate__(self) -> dict[str, Any]:
        state = self.ddp_comm_state
        sent = PickledPowerSGD.of(state) if isinstance(state, PowerSGDState) else state
        return {**self.__dict__, "ddp_comm_state": sent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.ddp_comm_state, PickledPowerSGD):
            self.ddp_comm_state = self.ddp_comm_state.state()

    def _check(self) -> None:
        method = signature(self.configure_ddp)
        try:
            method.bind(None, None)
        except TypeError:
            taken = ", ".join(["self", *method.parameters])
            raise ConfigError(
                f"{type(self).__name__}.configure_ddp takes ({taken}), but it is called with the module and the "
                "device: write `def configure_ddp(self, module, device)`, and return the wrapped module instead of "
                "setting self.model"
            ) from None
        allowed = [name for name in signature(DistributedDataParallel).parameters if name not in OWN]
        unknown = sorted(set(self.ddp_kwargs) - set(allowed))
        if unknown:
            ours = [name for name in signature(DDPStrategy).parameters if name not in allowed]
            raise ConfigError(
                f"strategy ddp has no setting {unknown[0]!r}; it has {', '.join(ours)}, and those of "
                f"DistributedDataParallel: {', '.join(allowed)}"
            )
        if self.model_averaging_period is not None and self.model_averaging_period < 1:
            raise ConfigError(
                f"model_averaging_period={self.model_averaging_period} must be at least 1 optimizer step"
            )
        if self.ddp_comm_hook is None and (self.ddp_comm_wrapper or self.ddp_comm_state):
            raise ConfigError(
                "ddp_comm_state and ddp_comm_wrapper need a ddp_comm_hook: give one, or neither"
            )
        self._check_averaging()

    def _check_averaging(self) -> None:
        sizes, hook = self.period_group_size, self.ddp_comm_hook
        if isinstance(sizes, str) and sizes != "auto":
            raise ConfigError(f'period_group_size={sizes!r} is neither "auto" nor periods with group sizes')
        if isinstance(sizes, Mapping):
            check_levels(sizes)
        if sizes is not None and self.model_averaging_period is not None:
            raise ConfigError(
                "model_averaging_period and period_group_size both say when to average: give one of them"
            )
        if not isinstance(hook, str):
            return
        if self.ddp_comm_state is not None and not isinstance(self.ddp_comm_state, Mapping):
            raise ConfigError(
                f"ddp_comm_hook={hook!r} takes its settings by name, and ddp_comm_state is a "
                f"{type(self.ddp_comm_state).__name__}: give a mapping, or the hook as a function"
            )
        settings_of(hook, self.ddp_comm_state or {})
        if hook == "post_local_sgd" and sizes is None and self.model_averaging_period is None:
            raise ConfigError(
                "with post_local_sgd replicas drift apart unless they are averaged: give model_averaging_period or "
                "period_group_size"
            )

    def refine_capabilities(self, declared: Capabilities) -> Capabilities:
        """Leave out sparse gradients with a communication hook, which needs buckets of dense gradients."""
        if self.ddp_comm_hook is None:
            return declared
        return replace(declared, features=declared.features - {"sparse_gradients"})

    def check_run(self, run: Run) -> None:
        """Refuse group sizes that don't fit the number of processes."""
        sizes, hook, given = self.period_group_size, self.ddp_comm_hook, self.ddp_comm_state
        if isinstance(sizes, Mapping) and run.plan.is_elastic:
            raise ConfigError(
                f"period_group_size={dict(sizes)!r} is for one number of ranks, which "
                f"num_nodes={run.config.num_nodes!r} lets change: "
                'choose "auto", or a fixed number of nodes'
            )
        if run.plan.is_elastic and not run.environment.creates_processes:
            return
        if isinstance(sizes, Mapping):
            fitting_levels(check_levels(sizes), run.world_size)
        asked = given.get("subgroup_size") if isinstance(hook, str) and isinstance(given, Mapping) else None
        if asked is not None:
            fitting_subgroup(asked, run.world_size, run.world_size)

    def configure_ddp(self, module: nn.Module, device: torch.device) -> DistributedDataParallel:
        """Wrap `module`, which is on `device`; override it to wrap differently. Collective.

        The first call uses `init_sync` as given: whether to broadcast rank 0's parameters and buffers. It is called
        again, on a copy of the strategy with `init_sync=False`, whenever other parameters require gradients.
        """
        device_ids = None if device.type == "cpu" else [device]
        with warnings.catch_warnings():
            # forward_sync_buffers isn't the same: it broadcasts buffers at the start.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            # The command line reads the available keywords from this call.
            return DistributedDataParallel(
                module, device_ids=device_ids, init_sync=self.init_sync, **self.ddp_kwargs
            )

    def without_init_sync(self) -> DDPStrategy:
        """Return a copy without the initial broadcast, for a module that is already equal on all ranks."""
        settings = object.__new__(type(self))
        settings.__dict__.update(vars(self), init_sync=False)
        return settings

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Return a replica whose gradients are averaged over ranks."""
        if not request.loop.training:
            return ReplicaPrepared(request, local_buffers=self.buffers == "local")
        if request.loop.manual:
            return ManualDDPPrepared(request, self.manual_dtype(), local_buffers=self.buffers == "local")
        return DDPPrepared(request, self)

    def manual_dtype(self) -> torch.dtype | None:
        """Return the dtype in which manual optimization averages gradients; None for their own dtype.

        Raises:
            ConfigError: the hook needs DDP's buckets, or parameters are averaged.
        """
        hook, averages = self.ddp_comm_hook, self.model_averaging_period or self.period_group_size
        if hook is None and averages is None:
            return None
        if (
            isinstance(hook, str)
            and hook in COMPRESSED
            and self.ddp_comm_wrapper is None
            and averages is None
        ):
            return COMPRESSED[hook]
        raise ConfigError(
            "this ddp_comm_hook works on DDP's buckets, and averages of parameters go by its steps, which manual "
            "optimization does not use: choose ddp, ddp_fp16 or ddp_bf16, or set automatic_optimization = True"
        )
