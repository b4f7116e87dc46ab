"""Copies of our own strategies that do one thing wrong each, around the answer of the right one."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from planting import FAULTS, Fault, compares_nothing
from stratagem_ddp import DDPStrategy
from stratagem_fsdp import FSDPStrategy
from stratagem_sharded import DDPShardedStrategy

from stratagem import Clipping, PreparedWrapper, hookimpl


def caught_by(base: type[Any], check: str, words: str) -> Any:
    """Plant a fault in a copy of `base`: a wrapper around what its `setup` answers."""

    def register(cls: type[PreparedWrapper]) -> type[PreparedWrapper]:
        @hookimpl
        def setup(self: Any, request: Any) -> Any:
            return cls(base.setup(self, request))

        name = f"{cls.__name__}Strategy"
        own = {"setup": setup, "__module__": __name__, "__qualname__": name}
        strategy = type(name, (base,), own)
        setattr(sys.modules[__name__], name, strategy)
        FAULTS.append(
            Fault("copies", cls.__name__, strategy, check, words, subject={"options": {"timeout_s": 60}})
        )
        return cls

    return register


class Uncompared(PreparedWrapper):
    """Ranks aren't compared, or that would notice before the check does."""

    replicas = compares_nothing

    def gradient_replicas(self, index: int) -> Any:
        return iter(())


@caught_by(DDPStrategy, "no_sync", "in no_sync")
class SendsEachMicroBatch(Uncompared):
    def no_sync(self) -> Any:
        return nullcontext()


@caught_by(DDPStrategy, "own_backwards", "the loss")
class LeavesGradientsLocal(Uncompared):
    def complete_gradients(self, index: int) -> None:
        pass


@caught_by(DDPStrategy, "parity", "the loss of micro-batch 1 is")
class SumsGradients(Uncompared):
    def step(self, index: int, closure: Any = None) -> bool:
        for group in self.optimizers[index].param_groups:
            for parameter in group["params"]:
                parameter.grad *= torch.distributed.get_world_size()
        return self.inner.step(index, closure)


@caught_by(DDPStrategy, "checkpoint_is_what_was_evaluated", "has outputs that differ by")
class EvaluatesWithItsOwnBuffers(Uncompared):
    def evaluating(self) -> Any:
        return nullcontext()


@caught_by(DDPShardedStrategy, "save_and_load", "continued from micro-batch")
class LosesShardsOfStates(Uncompared):
    """Each rank starts the optimizer again."""

    def load(self, reader: Any, state: dict[str, Any], *, model_only: bool = False) -> None:
        self.inner.load(reader, state, model_only=True)


@caught_by(DDPShardedStrategy, "optimizers", "tried with")
class StepsTheFirstGroupAlone(Uncompared):
    """Steps with the settings of the first group."""

    def step(self, index: int, closure: Any = None) -> bool:
        first, *others = self.optimizers[index].param_groups
        for group in others:
            group["lr"] = first["lr"]
        return self.inner.step(index, closure)


@caught_by(FSDPStrategy, "norm_clipping", "max_norm=0.05")
class ClipsItsOwnShards(Uncompared):
    def clip(self, index: int, clipping: Clipping) -> Any:
        if clipping.max_norm is None:
            return self.inner.clip(index, clipping)
        self.inner.precision.unscale(self.optimizers[index])
        parameters = [p for group in self.optimizers[index].param_groups for p in group["params"]]
        shards = [p.grad._local_tensor for p in parameters if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([shard.norm() for shard in shards]))
        for shard in shards:
            shard *= min(1.0, clipping.max_norm / float(norm))
        return norm


@caught_by(FSDPStrategy, "several_optimizers", "the loss of micro-batch 1 is")
class StepsTheFirst(Uncompared):
    def step(self, index: int, closure: Any = None) -> bool:
        return index > 0 or self.inner.step(index, closure)


@caught_by(FSDPStrategy, "accumulation", "accumulate=2")
class DropsFormerMicroBatches(Uncompared):
    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        self.inner.zero_grad(0)
        return self.inner.forward_backward(*args, divisor=divisor, sync=sync)


@caught_by(FSDPStrategy, "lets_go", "aren't freed")
class KeepsTheModule(Uncompared):
    kept: ClassVar[list[Any]] = []

    def release(self) -> None:
        self.kept.append(self.original_module)
        self.inner.release()
