"""Reads and writes full parameters of an engine that shards them, one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from stratagem_sharding.shards import padded_flat_shard
from torch import nn

from stratagem_deepspeed.deepspeed_private import stage3_of
from stratagem_deepspeed.swapping import write_shard


class Parameters:
    """Reads and writes parameters of an engine. Every method is collective, unless it says otherwise.

    Args:
        stage: the ZeRO stage.
        trained: the parameters that the engine's optimizer has.
        keeps_masters: whether the engine computes in 16 bits, and keeps parameters in 32.
    """

    def __init__(self, stage: int, trained: Iterable[nn.Parameter], keeps_masters: bool) -> None:
        self._stage = stage
        self._trained = {id(parameter) for parameter in trained}
        self._keeps_masters = keeps_masters

    def is_trained(self, parameter: nn.Parameter) -> bool:
        """Whether the engine's optimizer has the parameter. Not collective."""
        return id(parameter) in self._trained

    def read(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return the full parameter, in 32 bits if the engine keeps a 32-bit copy."""
        from deepspeed import zero
        from deepspeed.utils import safe_get_full_fp32_param

        if self.is_trained(parameter) and (self._stage == 3 or (self._stage and self._keeps_masters)):
            with trained(parameter):
                whole: torch.Tensor = safe_get_full_fp32_param(parameter)
            return whole if self._keeps_masters else whole.to(parameter.dtype)
        if self._stage == 3:
            with zero.GatheredParameters([parameter]):
                return parameter.detach().clone()
        return parameter.detach()

    def write(self, parameter: nn.Parameter, whole: torch.Tensor) -> None:
        """Set a parameter and the engine's 32-bit copy of it. All ranks pass the same values."""
        from deepspeed import zero
        from deepspeed.utils import safe_set_full_fp32_param

        with torch.no_grad():
            if self._stage == 3:
                with zero.GatheredParameters([parameter], modifier_rank=0):
                    parameter.copy_(whole)
            else:
                parameter.copy_(whole)
            if not self.is_trained(parameter):
                return
            if self._stage == 3:
                write_shard(stage3_of(parameter), parameter, own_shard(parameter, whole))
            elif self._stage:
                safe_set_full_fp32_param(parameter, whole.to(parameter.device))


@contextmanager
def trained(parameter: nn.Parameter) -> Iterator[None]:
    """Set requires_grad on a parameter: DeepSpeed's accessors find nothing for a parameter frozen after setup."""
    before = parameter.requires_grad
    parameter.requires_grad_(True)
    try:
        yield
    finally:
        parameter.requires_grad_(before)


def own_shard(parameter: Any, whole: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of `whole` as stage 3 shards `parameter`: flat, padded with zeros."""
    # ds_numel, since the size of a tensor that is on NVMe differs.
    return padded_flat_shard(whole, parameter.ds_tensor.ds_numel, dist.get_rank())


def named(original_module: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, torch.Tensor]]:
    """Return a module's parameters, under each of their names, and its buffers, as a checkpoint has them."""
    parameters: dict[str, nn.Parameter] = {}
    buffers: dict[str, torch.Tensor] = {}
    state: Mapping[str, Any] = original_module.state_dict(keep_vars=True)
    for name, value in state.items():
        if isinstance(value, nn.Parameter):
            parameters[name] = value
        elif isinstance(value, torch.Tensor):
            buffers[name] = value
    return parameters, buffers
