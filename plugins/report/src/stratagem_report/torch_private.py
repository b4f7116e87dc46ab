"""The private parts of torch that this plugin uses. All of them are here, each with the reason.

plugins/report/tests/test_torch_private.py fails when torch changes one, or offers a public way.
"""

from __future__ import annotations

from typing import Any, Callable

import torch


def at_backward_end(function: Callable[[], None]) -> Callable[[torch.Tensor], None]:
    """Return a hook for a loss. It calls `function` when a backward from that loss has computed all gradients.

    At that moment the backward hasn't waited yet for the reduction of gradients. The engine runs callbacks in the
    order in which they were queued. This one is queued when the backward begins, and DistributedDataParallel's
    callback, which waits, when the last gradient is computed. torch has no public way to queue one.

    Args:
        function: called in the thread that ends the backward.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    queue = engine.queue_callback

    def begin(gradient: torch.Tensor) -> None:
        queue(function)

    return begin
