"""Running variances of batch and instance normalization, as torch has them.

torch_xla takes the variance of a batch (or an instance) itself into `running_var`, divided by its n values, where
torch takes the unbiased one, divided by n - 1: with small batches evaluations come to other numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}
"""Class → how many of the last dims one instance has."""
_LAYERS = (*_BATCH, *_INSTANCE)


class UnbiasedVariances:
    """Corrects what each training forward of a module's layers adds to their `running_var`.

    Args:
        module: the user's.
    """

    def __init__(self, module: nn.Module) -> None:
        self._before: dict[int, torch.Tensor] = {}
        self._handles = [
            handle
            for layer in module.modules()
            if isinstance(layer, _LAYERS) and layer.track_running_stats
            for handle in (
                layer.register_forward_pre_hook(self._remember),
                layer.register_forward_hook(self._correct),
            )
        ]

    def remove(self) -> None:
        """Leave the layers as they were."""
        for handle in self._handles:
            handle.remove()
        self._before.clear()

    def _remember(self, layer: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if layer.training and layer.running_var is not None:
            self._before[id(layer)] = layer.running_var.clone()

    def _correct(self, layer: Any, inputs: tuple[torch.Tensor, ...], output: Any) -> None:
        before = self._before.pop(id(layer), None)
        if before is None:
            return
        count = _values(layer, inputs[0].shape)
        share = _share(layer)
        # Through `.data`: backward keeps the buffer, doesn't read it, and would refuse one that was written to.
        variance = layer.running_var.data
        # share · biased · n / (n - 1) is share · biased, which is there, and that once more by n - 1.
        variance.add_((variance - (1 - share) * before) / max(count - 1, 1))


def _values(layer: nn.Module, shape: torch.Size) -> int:
    """Return the number of values of each variance."""
    for kind, dims in _INSTANCE.items():
        if isinstance(layer, kind):
            return shape[-dims:].numel()
    return shape.numel() // shape[1]


def _share(layer: Any) -> Any:
    """What part of the running variance the newest is, as torch's layers have it where no momentum is given."""
    if layer.momentum is not None:
        return layer.momentum
    return 0.0 if isinstance(layer, tuple(_INSTANCE)) else 1 / layer.num_batches_tracked
