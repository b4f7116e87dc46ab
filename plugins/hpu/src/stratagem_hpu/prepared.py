"""What the loop calls per step on Gaudi processors: in the lazy mode, work is sent off at the documented moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stratagem_ddp import DDPPrepared, ManualDDPPrepared, ReplicaPrepared

from stratagem import Prepared
from stratagem_hpu.library import mark_step


class HPUPrepared(Prepared):
    """A module on a Gaudi processor.

    In the lazy mode (PT_HPU_LAZY_MODE=1) operations are collected: they are sent off after each backward, each
    optimizer's step and each batch of an evaluation. In the eager mode nothing is left to send.
    See https://docs.habana.ai/en/latest/PyTorch/Reference/mark_step.html.
    """

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        super().backward(loss, **kwargs)
        mark_step()

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        applied = super().step(index, closure)
        mark_step()
        return applied

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        output = super().evaluate(*args, **kwargs)
        mark_step()
        return output


class HPUReplicaPrepared(HPUPrepared, ReplicaPrepared):
    """A replica that isn't trained."""


class HPUDDPPrepared(HPUPrepared, DDPPrepared):
    """A replica under DistributedDataParallel on each Gaudi processor."""


class ManualHPUDDPPrepared(HPUPrepared, ManualDDPPrepared):
    """The same of a module that runs its own backwards and steps."""
