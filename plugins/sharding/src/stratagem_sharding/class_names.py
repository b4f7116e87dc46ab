"""`class_name`: the name of a module's class in messages, also if the module is sharded."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule


def class_name(module: nn.Module) -> str:
    """Return the name of the user's class. `fully_shard` replaces it by a subclass such as FSDPBatchNorm1d."""
    return next(cls for cls in type(module).__mro__ if not issubclass(cls, FSDPModule)).__name__
