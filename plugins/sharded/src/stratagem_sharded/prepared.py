"""What the loop calls per step under ddp_sharded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from stratagem_ddp import DDPPrepared, ManualDDPPrepared
from stratagem_sharding.optimizer_values import share_values
from stratagem_sharding.part_of_optimizer import StatesOfPart

from stratagem import ConfigError, Prepared, SetupRequest
from stratagem.sdk.states import load_optimizer
from stratagem_sharded.optimizer import ShardedOptimizer

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from stratagem import CheckpointReader
    from stratagem_sharded.strategy import DDPShardedStrategy


class _ShardedStates(Prepared):
    """Checkpoints of optimizers that keep the states of a part of their parameters.

    `optimizer_tensors` needs no change: a rank's states are those of the parameters it owns, and all
    ranks' together are the checkpoint.
    """

    has_all_states = False
    _request: SetupRequest

    def state(self) -> dict[str, Any]:
        state = super().state()
        share_values(state["optimizers"], self._request.collectives)
        for described, optimizer in zip(state["optimizers"], self._sharded()):
            described["class"] = type(optimizer.whole).__name__
        return state

    def load_optimizer(self, index: int, reader: CheckpointReader, saved: Sequence[dict[str, Any]]) -> None:
        optimizer = self._sharded()[index]
        load_optimizer(self.original_module, optimizer, index, reader, saved, owned=optimizer.owned)

    def gradient_replicas(self, index: int) -> Iterator[tuple[str, Any]]:
        yield from super().gradient_replicas(index)
        # The step makes them equal again, by those of the rank that steps each.
        yield from ((f"parameter {name!r}", each) for name, each in self.original_module.named_parameters())

    def optimizer_state(self, index: int) -> Any:
        if self._request.collectives.world_size == 1:
            return super().optimizer_state(index)
        return StatesOfPart(self.optimizers[index], "ddp_sharded")

    def _sharded(self) -> list[ShardedOptimizer]:
        return [optimizer for optimizer in self.optimizers if isinstance(optimizer, ShardedOptimizer)]


class ShardedPrepared(_ShardedStates, DDPPrepared):
    """A replica under DistributedDataParallel with sharded optimizers."""

    def __init__(self, request: SetupRequest, strategy: DDPShardedStrategy) -> None:
        self._request = sharded(request, strategy)
        DDPPrepared.__init__(self, self._request, strategy)


class ManualShardedPrepared(_ShardedStates, ManualDDPPrepared):
    """A replica whose module runs its own backwards and steps, with sharded optimizers."""

    def __init__(self, request: SetupRequest, strategy: DDPShardedStrategy) -> None:
        self._request = sharded(request, strategy)
        is_local = strategy.buffers == "local"
        ManualDDPPrepared.__init__(self, self._request, strategy.manual_dtype(), local_buffers=is_local)


def sharded(request: SetupRequest, strategy: DDPShardedStrategy) -> SetupRequest:
    """Return `request` with optimizers that are made sharded."""

    def make() -> list[ShardedOptimizer]:
        optimizers = request.make_optimizers()
        for optimizer in optimizers:
            _refuse_several_dtypes(optimizer, request)
        return [
            ShardedOptimizer(optimizer, as_bucket_view=strategy.parameters_as_bucket_view)
            for optimizer in optimizers
        ]

    return replace(request, make_optimizers=make)


def _refuse_several_dtypes(optimizer: Optimizer, request: SetupRequest) -> None:
    first: dict[torch.dtype, torch.Tensor] = {}
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        first.setdefault(parameter.dtype, parameter)
    if len(first) > 1:
        names = {id(parameter): name for name, parameter in request.original_module.named_parameters()}
        one, other, *_ = first.values()
        raise ConfigError(
            f"{type(optimizer).__name__} steps {names.get(id(one))!r}, which is {one.dtype}, and "
            f"{names.get(id(other))!r}, which is {other.dtype}, and ddp_sharded takes one dtype for each optimizer: "
            "give those of each dtype their own optimizer, or choose ddp"
        )
