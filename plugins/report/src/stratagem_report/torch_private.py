"""What this plugin uses of torch that torch keeps private: all of it, each with the reason.

plugins/report/tests/test_torch_private.py tells when torch changes one, or has a public way.
"""

from __future__ import annotations

from typing import Any, Callable

import torch


def at_backward_end(loss: torch.Tensor, function: Callable[[], None]) -> None:
    """Call `function` when the backward from `loss` has computed all gradients, before it waits for their reduction.

    Callbacks of a backward run in the order in which they were queued: this one is queued when the backward
    begins, that of DistributedDataParallel, which waits, when its last gradient is there. There is no public way to
    queue one.

    Args:
        loss: requires gradients; its backward runs at most once.
        function: called in the thread that ends the backward.
    """
    engine: Any = torch.autograd.Variable._execution_engine

    def begin(gradient: torch.Tensor) -> None:
        engine.queue_callback(function)

    loss.register_hook(begin)
