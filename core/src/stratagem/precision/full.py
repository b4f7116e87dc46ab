"""Full precision: 32 or 64 bits throughout."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from stratagem.precision.base import Precision
from stratagem.precision.convert import default_dtype


class TruePrecision(Precision):
    """Parameters, inputs and arithmetic in `param_dtype`, which every subclass sets.

    The default dtype is `param_dtype` while the module is made and during forward, so that tensors
    made there fit.
    """

    param_dtype: torch.dtype

    def init_context(self) -> AbstractContextManager[Any]:
        return default_dtype(self.param_dtype)

    def autocast(self) -> AbstractContextManager[Any] | None:
        return default_dtype(self.param_dtype)


class SinglePrecision(Precision):
    """ "32-true": everything as the user made it; costs nothing per step."""

    name = "32-true"

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name


class DoublePrecision(TruePrecision):
    """ "64-true": float64 throughout."""

    name = "64-true"
    param_dtype = torch.float64

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
