"""Private names of torch that precisions need, each with the reason.

tests/core/precision/test_torch_private.py fails when torch changes one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Optimizer


def apply_to_tensors(module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace each parameter, its gradient and each buffer by the result of `convert`.

    `Module.to` calls `Module._apply`, which torch's recurrent modules extend to inform cuDNN. `Module.to` itself
    would convert complex tensors to real dtypes, too.
    """
    module._apply(convert)  # type: ignore[no-untyped-call]  # torch has no types for it


class GradientScaler(torch.amp.GradScaler):
    """torch's scaler, which also reports the overflows that it found in the gradients.

    torch's `step` and `update` use the overflows without reporting them. The loop needs them before the step, to
    agree among ranks, and after it, so that a skipped step isn't counted.
    """

    @property
    def has_scaled(self) -> bool:
        """Whether any loss was scaled yet; before, gradients have their true size."""
        return self._scale is not None

    def overflows(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Return per device whether a gradient of `optimizer` is infinite or NaN, as a scalar of 0 or 1.

        Empty if `optimizer` wasn't unscaled or has no gradients.
        """
        return list(self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        """Divide gradients by the scale, even if they are in the CPU's memory.

        torch copies the scale there without waiting for the copy, and might divide by the previous step's scale.
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
