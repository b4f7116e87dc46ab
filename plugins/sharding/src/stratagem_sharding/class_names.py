"""How messages name the class of a module that may be sharded."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule


def class_name(module: nn.Module) -> str:
    """Return the name of the user's class: torch's `fully_shard` derives another from it, as FSDPBatchNorm1d."""
    return next(cls for cls in type(module).__mro__ if not issubclass(cls, FSDPModule)).__name__
