"""Half precision throughout: half the memory for parameters, gradients and activations."""

from __future__ import annotations

from typing import ClassVar

import torch

from stratagem.errors import PrecisionError
from stratagem.precision.full import TruePrecision


class Half(TruePrecision):
    """ "16-true" and "bf16-true": parameters, optimizer state and arithmetic in 16 bits, nothing scaled.

    Args:
        name: "16-true" for float16, "bf16-true" for bfloat16.
        device: where it will be used.

    Raises:
        PrecisionError: another name.
    """

    dtypes: ClassVar[dict[str, torch.dtype]] = {"16-true": torch.float16, "bf16-true": torch.bfloat16}

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in self.dtypes:
            raise PrecisionError(f"precision={name!r} isn't one of {', '.join(self.dtypes)}")
        self.name = name
        self.param_dtype = self.dtypes[name]
