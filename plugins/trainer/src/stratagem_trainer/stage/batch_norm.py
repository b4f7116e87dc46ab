"""`sync_batchnorm`: batch normalization with the statistics of all ranks' batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.part_of_batch import refuse_in_chunk
from torch import Tensor, nn

from stratagem.errors import CombinationError

if TYPE_CHECKING:
    from stratagem import Collectives, Runtime

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Layers that keep running statistics of batches."""
_ranks: list[Collectives] = []
"""Collectives of the stage that runs in this process. Layers can't have them: layers are copied and pickled."""


def synchronize_batch_norms(runtime: Runtime, module: nn.Module) -> None:
    """Let a module's BatchNorm layers use statistics of all ranks' batches, until `as_before` is called.

    Raises:
        CombinationError: the run computes in one process on several devices.
    """
    session = runtime.session
    if session.run.capabilities.processes == "one" and len(session.run.devices) > 1:
        raise CombinationError(
            f"sync_batchnorm needs a process for each device, and strategy {session.run.strategy_name!r} has one for "
            "all: choose another strategy, such as ddp, or leave sync_batchnorm out"
        )
    ranks = runtime.collectives.data
    if ranks.world_size == 1:
        return
    _ranks[:] = [ranks]
    for layer in module.modules():
        if type(layer) in _SYNCHRONIZED:
            # patch: batch norms
            layer.__class__ = _SYNCHRONIZED[type(layer)]


def as_before(module: nn.Module) -> None:
    """Undo `synchronize_batch_norms`."""
    for layer in module.modules():
        original = _ORIGINAL.get(type(layer))
        if original is not None:
            # patch: batch norms
            layer.__class__ = original
    _ranks.clear()


class _Synchronized(nn.Module):
    """Batch normalization that, in training, uses the mean and variance over all ranks' batches.

    Parameters, buffers and evaluation are those of the original layer. Forward and backward each run one collective
    per layer. Statistics are float32 or wider.
    """

    def forward(self, input: Tensor) -> Tensor:
        layer: Any = self
        if not layer.training or not _ranks:
            evaluated: Tensor = super().forward(input)
            return evaluated
        refuse_in_chunk("sync_batchnorm")
        wide = input if input.dtype == torch.float64 else input.float()
        dims = [0, *range(2, input.dim())]
        own_var, own_mean = torch.var_mean(wide, dims, correction=0)
        count = own_mean.new_full((1,), input.numel() / input.shape[1])
        # [ranks, 2 × channels + 1]. Its backward sums the gradients of all ranks' losses for these statistics.
        gathered = _ranks[0].all_gather(torch.cat([own_mean, own_var, count]), True)
        channels = own_mean.numel()
        means, variances, counts = gathered[:, :channels], gathered[:, channels:-1], gathered[:, -1:]
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        var = ((variances + (means - mean).square()) * counts).sum(0) / total
        self._update(mean.detach(), (var * total / (total - 1)).detach())
        shape = [1, channels, *[1] * (input.dim() - 2)]
        normalized = (wide - mean.view(shape)) * (var + layer.eps).rsqrt().view(shape)
        if layer.affine:
            normalized = normalized * layer.weight.view(shape) + layer.bias.view(shape)
        result: Tensor = normalized.to(input.dtype)
        return result

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor) -> None:
        layer: Any = self
        if not layer.track_running_stats:
            return
        layer.num_batches_tracked += 1
        share = 1 / layer.num_batches_tracked.item() if layer.momentum is None else layer.momentum
        layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), share)
        layer.running_var.lerp_(var.to(layer.running_var.dtype), share)


class SynchronizedBatchNorm1d(_Synchronized, nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` over all ranks."""


class SynchronizedBatchNorm2d(_Synchronized, nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` over all ranks."""


class SynchronizedBatchNorm3d(_Synchronized, nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d` over all ranks."""


_SYNCHRONIZED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: SynchronizedBatchNorm1d,
    nn.BatchNorm2d: SynchronizedBatchNorm2d,
    nn.BatchNorm3d: SynchronizedBatchNorm3d,
}
_ORIGINAL = {synchronized: original for original, synchronized in _SYNCHRONIZED.items()}
