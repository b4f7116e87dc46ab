"""What the loop calls per step under dp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ReferenceType, ref

import torch

from stratagem import Prepared
from stratagem.errors import GradientError


class SplitPrepared(Prepared):
    """A module that splits its batches over devices, for evaluations too.

    A backward that raised has got to different layers on each device. What it has left is no gradient of any batch.
    """

    # What a replica's forward changes in its buffers is found by counts of writes, which tensors made under
    # `torch.inference_mode` don't have.
    supports_inference_mode = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._left: dict[int, list[tuple[torch.Tensor, ReferenceType[torch.Tensor]]]] = {}
        """Index of an optimizer → its parameters, and the gradients that an unfinished backward has left."""

    def abandon_backward(self) -> None:
        super().abandon_backward()
        for index, parameters in enumerate(self._parameters):
            self._left[index] = [(p, ref(p.grad)) for p in parameters if p.grad is not None]

    def zero_grad(self, index: int) -> None:
        super().zero_grad(index)
        self._left.pop(index, None)

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        """Step optimizer `index`.

        Raises:
            GradientError: a gradient has what a backward left that raised.
        """
        left = self._left.get(index, ())
        if any(p.grad is not None and p.grad is gradient() for p, gradient in left):
            raise GradientError(
                f"{type(self.optimizers[index]).__name__} steps gradients to which a backward added that raised, and "
                "under dp it had got to different layers on each device: call optimizer.zero_grad() after the "
                "exception, or choose strategy ddp"
            )
        return super().step(index, closure)
