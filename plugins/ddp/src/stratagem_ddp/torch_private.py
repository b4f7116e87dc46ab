"""What this plugin uses of torch that torch keeps private in addition to that of `stratagem_sharding.torch_private`.

All of it, each with the reason.

plugins/ddp/tests/test_torch_private.py fails when torch changes one, or has a public way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

LEFT_OUT = "_ddp_params_and_buffers_to_ignore"
"""Attribute of a module: names that DistributedDataParallel leaves alone. Users set it, as torch has no argument for
it (`_set_params_and_buffers_to_ignore_for_model`)."""


def left_out(module: nn.Module) -> list[str]:
    """Return the names that a module asks DistributedDataParallel to leave alone."""
    return list(getattr(module, LEFT_OUT, ()))


def mark_ready(ddp: DistributedDataParallel, positions: Iterable[int]) -> None:
    """Have parameters' gradients, as they are, reduced; call it within a backward, after `prepare_for_backward`.

    It is what the hook on each parameter calls, and without it a rank that has no gradient can join a reduction
    only by a backward through all parameters, which calls the user's hooks.

    Args:
        ddp: whose reducer was prepared.
        positions: of parameters among those that it reduces.
    """
    reducer: Any = ddp.reducer
    for position in positions:
        reducer._autograd_hook(position)


def rebuild_buckets(ddp: DistributedDataParallel) -> None:
    """Arrange buckets in the order of the last backward now, and not at the next forward, as torch does itself."""
    ddp.reducer._rebuild_buckets()


def check_finished(ddp: DistributedDataParallel) -> None:
    """Raise torch's RuntimeError where the last backward left a gradient without a reduction.

    Torch calls it at the next forward, which is after the optimizer's step with those gradients.
    """
    ddp.reducer._check_reducer_finalized()


def remove_hooks(ddp: DistributedDataParallel) -> None:
    """Take a reducer's hooks off parameters: there is no public end of a DistributedDataParallel."""
    ddp.reducer._remove_autograd_hooks()
