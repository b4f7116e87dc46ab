"""`XLAFSDPStrategy`: parameters, gradients and optimizer states in shards on XLA devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Union

import torch
from torch import nn

from stratagem import (
    Accelerator,
    Checkpointer,
    Collectives,
    Precision,
    Prepared,
    SetupRequest,
    hookimpl,
)
from stratagem_xla.sharded import ShardedPrepared, shard
from stratagem_xla.sharding import Layout
from stratagem_xla.strategy import XLAStrategy

Policy = Union[Callable[..., Any], Iterable[Union[type[nn.Module], str]], None]


class XLAFSDPStrategy(XLAStrategy):
    """Fully sharded data parallel on XLA devices, on torch_xla's FSDPv2: one process drives them all (SPMD).

    Each parameter is cut along its longest dim, and so are its gradient and its optimizer's states; XLA
    gathers where it computes.

    Args:
        accelerator: an accelerator object or name that wins over the run's choice.
        parallel_devices: XLA devices; wins over the run's `devices`, and only their number matters.
        checkpoint_io: makes the run's checkpointer from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        debug: let torch_xla analyse why it compiles and waits: xla-debug.txt and xla-metrics.txt in the run's folder.
        auto_wrap_policy: which modules XLA finishes by themselves in backward: classes or their names, a policy
            of `torch_xla.distributed.fsdp.wrap`, or None for the elements of every ModuleList.
    """

    axis = "fsdp"

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        checkpoint_io: Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
        debug: bool = False,
        auto_wrap_policy: Policy = None,
    ) -> None:
        super().__init__(accelerator, parallel_devices, checkpoint_io, precision_plugin, debug)
        self.auto_wrap_policy = auto_wrap_policy

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module in shards."""
        self.direct_output(request)
        layout = Layout(max(len(request.devices), 1), self.axis)
        return ShardedPrepared(request, layout, shard(request, layout, self.auto_wrap_policy))
