"""`XLAFSDPStrategy`: parameters, gradients and optimizer states in shards on XLA devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Union

import torch
from torch import nn

from stratagem import (
    Capabilities,
    CombinationError,
    Prepared,
    SetupRequest,
    hookimpl,
)
from stratagem.sdk.options import StrategyOptions, split_options
from stratagem_xla import process_shards
from stratagem_xla.sharded import ShardedPrepared, shard
from stratagem_xla.sharding import Layout
from stratagem_xla.strategy import XLAStrategy
from stratagem_xla.wrapper_options import wrapper_options

if TYPE_CHECKING:
    from stratagem.sdk.runs import Run

Policy = Union[Callable[..., Any], Iterable[Union[type[nn.Module], str]], None]
PRECISIONS = ("32-true", "bf16-mixed")
"""With a process per device: torch_xla's wrapper only has float32 parameters."""


class XLAFSDPStrategy(XLAStrategy):
    """Fully sharded data parallel on XLA devices: by default one process drives them all (SPMD).

    That is torch_xla's FSDPv2: each parameter is cut along its longest dim, and so are its gradient and its
    optimizer's states; XLA gathers where it computes. With a process per device, `XlaFullyShardedDataParallel`
    cuts parameters into flat shards, one for each process, and gathers them unit by unit.

    Args:
        parallel_devices: XLA devices; wins over the run's `devices`, and only their number matters.
        debug: let torch_xla analyse why it compiles and waits: xla-debug.txt and xla-metrics.txt in the run's folder.
        auto_wrap_policy: which modules XLA finishes separately in backward, or which are gathered separately:
            classes or their names, a policy of `torch_xla.distributed.fsdp.wrap`, or None for the elements of
            every ModuleList.
        sync_module_states: start from the first process's parameters and buffers, where there are several.
        spmd: False starts a process per device (`torch_xla.launch`), which PJRT's CPU only has for one.
        start_method: of those processes, "spawn" or "fork".
        kwargs: those of `StrategyOptions`, and keywords of `XlaFullyShardedDataParallel` for spmd=False, as
            `reshard_after_forward`; docs/strategies/xla.md lists those that there are.

    Raises:
        ConfigError: another start method; a keyword or a value that is not available.
    """

    axis = "fsdp"

    def __init__(
        self,
        *,
        parallel_devices: Sequence[torch.device] | None = None,
        debug: bool = False,
        auto_wrap_policy: Policy = None,
        sync_module_states: bool = True,
        spmd: bool = True,
        start_method: str = "spawn",
        **kwargs: Any,
    ) -> None:
        shared, kwargs = split_options(StrategyOptions, kwargs)
        super().__init__(
            parallel_devices=parallel_devices,
            debug=debug,
            sync_module_states=sync_module_states,
            spmd=spmd,
            start_method=start_method,
            **shared,
        )
        self.auto_wrap_policy = auto_wrap_policy
        self.wrapper_options = wrapper_options(kwargs)
        self.optimizer_cuts = ("rows",) if self.wrapper_options.get("shard_param_on_dim_0") else ("flat",)

    def refine_capabilities(self, declared: Capabilities) -> Capabilities:
        """With a process per device, every forward gathers, and torch_xla's wrapper wants backward after it."""
        refined = super().refine_capabilities(declared)
        if self.spmd:
            return refined
        features = refined.features - {"manual_backward", "whole_optimizer"} | {"collective_forward"}
        return replace(refined, precisions=PRECISIONS, features=features)

    def check_run(self, run: Run) -> None:
        """Refuse two dtypes to compute in."""
        super().check_run(run)
        if "compute_dtype" in self.wrapper_options and not run.precision.startswith("32"):
            raise CombinationError(
                f"compute_dtype={self.wrapper_options['compute_dtype']} and precision={run.precision!r} both say "
                "in what to compute: give one of them"
            )

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module in shards."""
        self.direct_output(request)
        layout = Layout(len(request.devices), self.axis)
        if not self.spmd:
            policy, options = self.auto_wrap_policy, self.wrapper_options
            return process_shards.prepare(request, layout, policy, options, self.sync_module_states)
        if self.wrapper_options:
            unused = ", ".join(self.wrapper_options)
            warnings.warn(f"xla_fsdp has no use for {unused} under SPMD", UserWarning, stacklevel=2)
        return ShardedPrepared(request, layout, shard(request, layout, self.auto_wrap_policy))
