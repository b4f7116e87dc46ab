"""What this plugin uses of torch that torch keeps private: all of it, each with the reason.

plugins/report/tests/test_torch_private.py fails when torch changes one, or has a public way.
"""

from __future__ import annotations

from typing import Any, Callable

import torch


def at_backward_end(function: Callable[[], None]) -> Callable[[torch.Tensor], None]:
    """Return a hook for a loss: `function` is called when a backward from it has computed all gradients.

    That is before the backward waits for their reduction. Callbacks of a backward run in the order in which they were
    queued: this one is queued when the backward begins, that of DistributedDataParallel, which waits, when its last
    gradient is there. There is no public way to queue one.

    Args:
        function: called in the thread that ends the backward.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    queue = engine.queue_callback

    def begin(gradient: torch.Tensor) -> None:
        queue(function)

    return begin
