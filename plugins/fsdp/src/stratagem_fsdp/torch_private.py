"""What this plugin uses of torch that torch keeps private beside `stratagem.sdk.torch_private`.

All of it, each with the reason.

plugins/fsdp/tests/test_torch_private.py tells when torch changes one, or has a public way.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, and any other tensor as it is.

    `DTensor.to_local` goes through autograd, and takes 20 times as long.
    """
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def is_in_backward() -> bool:
    """Whether autograd is at work in this thread, as while activations are computed again.

    `torch._C._current_graph_task_id` is what fully_shard itself asks; nothing public tells.
    """
    return torch._C._current_graph_task_id() != -1
