"""Private names of torch that this plugin uses, in addition to those in `stratagem_sharding.torch_private`.

Each has its reason.

plugins/ddp/tests/test_torch_private.py fails when torch changes one, or offers a public API.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

LEFT_OUT = "_ddp_params_and_buffers_to_ignore"
"""Attribute of a module: names of parameters and buffers that DistributedDataParallel ignores. Users set it, since
torch has no public argument for it (pytorch/pytorch#43690)."""


def left_out(module: nn.Module) -> list[str]:
    """Return the names that a module asks DistributedDataParallel to ignore."""
    return list(getattr(module, LEFT_OUT, ()))


def mark_ready(ddp: DistributedDataParallel, positions: Iterable[int]) -> None:
    """Mark parameters ready, so that their current gradients are reduced.

    Call it within a backward, after `prepare_for_backward`. DDP's own hook on each parameter calls it. Without it, a
    rank without gradients could only join a reduction by a backward through all parameters, which calls the
    user's hooks.

    Args:
        ddp: its reducer must be prepared.
        positions: of the parameters, among those that it reduces.
    """
    reducer: Any = ddp.reducer
    for position in positions:
        reducer._autograd_hook(position)


def rebuild_buckets(ddp: DistributedDataParallel) -> None:
    """Rebuild buckets in the order of the last backward now; torch itself does it at the next forward."""
    ddp.reducer._rebuild_buckets()


def check_finished(ddp: DistributedDataParallel) -> None:
    """Raise torch's RuntimeError if the last backward left gradients unreduced.

    Torch checks at the next forward, after the optimizer has already stepped with those gradients.
    """
    ddp.reducer._check_reducer_finalized()


def remove_hooks(ddp: DistributedDataParallel) -> None:
    """Remove a reducer's hooks from parameters. DistributedDataParallel has no public method to shut down."""
    ddp.reducer._remove_autograd_hooks()
