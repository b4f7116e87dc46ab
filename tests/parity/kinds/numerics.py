"""Precisions, and numbers that are easily lost."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.parity.kind import Kind


class Numerics(Kind, abstract=True):
    theme = "numerics"


class Double64(Numerics):
    """float64 throughout."""

    precision = "64-true"
    tolerance = 1e-12
    tolerance_reason = "float64: a rounding to float32 on the way would show as 1e-7"


class Bf16Mixed(Numerics):
    """bf16-mixed."""

    precision = "bf16-mixed"
    tolerance = 5e-2
    tolerance_reason = "bfloat16 has 8 bits"


class Bf16True(Numerics):
    """bf16-true."""

    precision = "bf16-true"
    tolerance = 2e-1
    tolerance_reason = "bfloat16 has 8 bits, also for weights: an update is some of them"
    lr = 0.5


class TinyGradients(Numerics):
    """Gradients of 1e-12, which Adam without eps turns into whole steps."""

    tolerance = 1e-3
    tolerance_reason = "Adam divides gradients by their size"

    def loss(self, net: nn.Module, batch: Any, context: Any) -> Any:
        return 1e-12 * super().loss(net, batch, context)

    def optimizers(self, net: nn.Module) -> Any:
        return torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-20)


class AllFrozen(Numerics):
    """Rate of zero: weights stay as they are, to the last bit."""

    trains_nothing = True

    def optimizers(self, net: nn.Module) -> Any:
        return torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
