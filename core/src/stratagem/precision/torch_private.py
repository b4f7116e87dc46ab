"""What precisions use of torch that torch keeps private, with the reasons.

tests/core/precision/test_torch_private.py fails when torch changes one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer


def apply_to_tensors(module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Put what `convert` makes in the place of each parameter, its gradient and each buffer.

    `Module._apply` is what `Module.to` is made of, and what torch's recurrent modules extend to tell cuDNN;
    `Module.to` converts complex tensors to real dtypes, too.
    """
    module._apply(convert)  # type: ignore[no-untyped-call]  # torch has no types for it


class GradientScaler(torch.amp.GradScaler):
    """Torch's scaler, which also reports the overflows that it found in the gradients.

    `step` and `update` decide by them without reporting them. The loop needs them before the step, to agree among
    ranks, and after it, so that a skipped step isn't counted.
    """

    @property
    def has_scaled(self) -> bool:
        """Whether any loss was scaled yet; before, gradients have their true size."""
        return self._scale is not None

    def overflows(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Return per device whether a gradient of `optimizer` is infinite or NaN, as a scalar of 0 or 1.

        Empty where `optimizer` wasn't unscaled or has no gradients.
        """
        return list(self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        """Divide gradients by the scale, also those that are kept in the CPU's memory.

        Torch copies the scale there without waiting for the copy, and would divide by the one of a step before.
        """
        groups = optimizer.param_groups
        kinds = {p.grad.device.type for group in groups for p in group["params"] if p.grad is not None}
        if "cpu" in kinds:
            inv_scale, found_inf = inv_scale.cpu(), found_inf.cpu()
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)

    def forget(self, optimizer: Optimizer) -> None:
        """Let `optimizer` be unscaled again."""
        # patch: scaler states
        del self._per_optimizer_states[id(optimizer)]

    def forget_all(self) -> None:
        """Let every optimizer be unscaled again, as `update` does, and leave the scale as it is."""
        # patch: scaler states
        self._per_optimizer_states.clear()
