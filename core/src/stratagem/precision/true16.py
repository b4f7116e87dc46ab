"""Half precision throughout: half the memory for parameters, gradients and activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from stratagem.precision.full import FullPrecision


class TruePrecision(FullPrecision):
    """ "16-true" and "bf16-true": parameters, optimizer state and arithmetic in 16 bits, nothing scaled."""

    dtypes: ClassVar[Mapping[str, torch.dtype | None]] = {
        "16-true": torch.float16,
        "bf16-true": torch.bfloat16,
    }
