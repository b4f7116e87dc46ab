"""One dtype throughout: 32 or 64 bits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch

from stratagem.errors import PrecisionError
from stratagem.precision.base import Precision
from stratagem.precision.convert import default_dtype


class FullPrecision(Precision):
    """ "32-true" leaves everything as the user made it; "64-true" is float64 throughout.

    If there is a `param_dtype`, it is the default dtype while the module is made and during forward, so that tensors
    made there have it, too.

    Args:
        name: one of `dtypes`.
        device: the device on which it will be used.

    Raises:
        PrecisionError: another name.
    """

    dtypes: ClassVar[Mapping[str, torch.dtype | None]] = {"32-true": None, "64-true": torch.float64}
    """Name → dtype of everything; None keeps the user's dtypes."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in self.dtypes:
            raise PrecisionError(f"precision={name!r} isn't one of {', '.join(self.dtypes)}")
        self.name = name
        self.param_dtype = self.dtypes[name]

    def init_context(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.param_dtype is None else default_dtype(self.param_dtype)

    def autocast(self) -> AbstractContextManager[Any] | None:
        return None if self.param_dtype is None else default_dtype(self.param_dtype)
