"""One callable for all steps of a module, so that a strategy wraps every forward."""

from __future__ import annotations

from typing import Any

from torch import nn


class StepModule(nn.Module):
    """Its forward calls a named step of the user's module.

    DistributedDataParallel and its like act in the forward of the module that they wrap; a user's
    step may call any method of its module, or none of its forward. Wrapping this one covers them all.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, step: str, *args: Any) -> Any:
        return getattr(self.module, step)(*args)
