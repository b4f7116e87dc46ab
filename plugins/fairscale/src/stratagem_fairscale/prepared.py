"""What the loop calls per step under fairscale_sharded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.buckets import broadcast_coalesced
from stratagem_sharding.optimizer_values import share_values
from stratagem_sharding.part_of_optimizer import StatesOfPart
from stratagem_sharding.replicated import ReplicatedPrepared
from stratagem_sharding.torch_private import number_of_step_hooks
from torch import nn
from torch.optim import Optimizer

from stratagem import Clipping, CombinationError, ConfigError, SetupRequest, place
from stratagem.sdk.loops import loss_of
from stratagem.sdk.states import load_optimizer
from stratagem_fairscale.optimizer import ShardedOptimizer
from stratagem_fairscale.reducer import GradientReducer

if TYPE_CHECKING:
    from stratagem import CheckpointReader
    from stratagem_fairscale.strategy import FairScaleShardedStrategy


class FairScaleShardedPrepared(ReplicatedPrepared):
    """A replica of which this rank steps some parameters. It keeps the gradients of these only.

    Args:
        request: as the `setup` hook received it. Construction is collective.
        strategy: has the settings.
    """

    has_all_states = False

    def __init__(self, request: SetupRequest, strategy: FairScaleShardedStrategy) -> None:
        module = place(request)
        # Before OSS moves parameters into its buffers, with this rank's values.
        broadcast_coalesced((*module.parameters(), *module.buffers()))
        self._names = {id(p): name for name, p in request.original_module.named_parameters()}
        whole = request.make_optimizers()
        _refuse_unfit(whole, self._names)
        dtypes = {p.dtype for each in whole for group in each.param_groups for p in group["params"]}
        self._sharded = [ShardedOptimizer(each) for each in whole]
        self._reducer = GradientReducer(
            module,
            self._sharded,
            request.collectives,
            request.device,
            self._names,
            strategy.reduce_buffer_size
            if len(dtypes) == 1
            else 0,  # gradients in a buffer must have one dtype
            strategy.reduce_fp16,
            checks=request.steps is None,
        )
        self._is_own_loop = request.steps is None
        super().__init__(request, self._reducer.engine, self._sharded)
        self._collectives, self._replica = request.collectives, module
        self._handles = [
            *(each.register_step_pre_hook(self._settle) for each in self._sharded),
            *(each.register_step_post_hook(self._forget_averages) for each in self._sharded),
        ]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.evaluate(*args, **kwargs)
        self._reducer.before_forward()
        return super().forward(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._replica, *args, **kwargs)

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        output = super().forward_backward(*args, divisor=divisor, sync=sync)
        if sync and self._reducer.is_on and loss_of(output) is None:
            self._reducer.finish()  # other ranks may have a loss
        return output

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        self._reducer.set_aside()
        super().backward(loss, **kwargs)
        if self._reducer.is_on:
            self._reducer.finish()
            self._hold()

    def abandon_backward(self) -> None:
        super().abandon_backward()
        self._reducer.abandon()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._reducer.set_aside()
        self._reducer.note_leftovers()
        before, self._reducer.is_on = self._reducer.is_on, False
        try:
            yield
        finally:
            self._reducer.is_on = before

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        self._settle()
        optimizer = self._sharded[index]
        self.precision.unscale(optimizer)
        try:
            return self._clip(optimizer, clipping)
        finally:
            self._reducer.note_complete(self._parameters[index])
            self._hold()

    def _clip(self, optimizer: ShardedOptimizer, clipping: Clipping) -> torch.Tensor | None:
        if clipping.max_value is not None:
            own = [parameter for parameter in optimizer.owned if parameter.grad is not None]
            if own:  # torch raises on an empty list
                nn.utils.clip_grad_value_(own, clipping.max_value)
        if clipping.max_norm is None:
            return None
        return optimizer.clip_grad_norm(clipping.max_norm, clipping.norm_type)

    def complete_gradients(self, index: int) -> None:
        if self._is_own_loop:
            self._reducer.complete(self._parameters[index], self._kind(index))

    def average_gradients(self, index: int) -> None:
        self._reducer.average(self._parameters[index], self._kind(index))
        self._hold()

    def _kind(self, index: int) -> str:
        return type(self._sharded[index].whole).__name__

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        optimizer = self._sharded[index]
        own_hooks = len(self._handles) // len(self._sharded)
        if (
            self._is_own_loop
            and number_of_step_hooks(optimizer) + number_of_step_hooks(optimizer.whole) > own_hooks
        ):
            raise CombinationError(
                f"{self._kind(index)} has step hooks, and under fairscale_sharded they would see one "
                "rank's gradients alone: call what they do around optimizer.step(), or choose ddp_sharded"
            )
        applied = super().step(index, closure)
        self._hold()
        return applied

    def zero_grad(self, index: int) -> None:
        self._reducer.let_go()
        super().zero_grad(index)
        if self._is_own_loop:
            self._reducer.drop(self._parameters[index])
        self._reducer.forget_averages()

    def optimizer_state(self, index: int) -> Any:
        return StatesOfPart(self._sharded[index], "fairscale_sharded")

    def state(self) -> dict[str, Any]:
        state = super().state()
        share_values(state["optimizers"], self._collectives)
        for described, optimizer in zip(state["optimizers"], self._sharded):
            described["class"] = type(optimizer.whole).__name__
        return state

    def load_optimizer(self, index: int, reader: CheckpointReader, saved: Sequence[dict[str, Any]]) -> None:
        optimizer = self._sharded[index]
        load_optimizer(self.original_module, optimizer, index, reader, saved, owned=optimizer.owned)

    def release(self) -> None:
        super().release()
        for handle in self._handles:
            handle.remove()
        self._reducer.release()
        for optimizer in self._sharded:
            optimizer.release()
        del self._reducer, self._replica

    def _hold(self) -> None:
        # With weighted losses, gradients are still multiplied after the backward.
        if self._is_own_loop and not self.loss_weights.is_used:
            self._reducer.hold()

    def _settle(self, *_: Any) -> None:
        self._reducer.settle()

    def _forget_averages(self, *_: Any) -> None:
        self._reducer.forget_averages()


def _refuse_unfit(optimizers: Sequence[Optimizer], names: dict[int, str]) -> None:
    """Refuse optimizers that OSS handles wrongly: it sends one rank's parameters of an optimizer in one buffer.

    Raises:
        ConfigError: a parameter is in two optimizers, an optimizer has parameters of several dtypes, or none in its
            first group.
    """
    count: Counter[int] = Counter()
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        first: dict[torch.dtype, torch.Tensor] = {}
        if not optimizer.param_groups[0]["params"]:
            raise ConfigError(
                f"the first group of {kind} has no parameters, by which OSS looks for its device: leave the group out"
            )
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            first.setdefault(parameter.dtype, parameter)
            count[id(parameter)] += 1
            if count[id(parameter)] > 1:
                raise ConfigError(
                    f"{names.get(id(parameter))!r} is in two optimizers, and fairscale_sharded sends each parameter "
                    "for one: leave it out of one of them, or choose ddp"
                )
        if len(first) > 1:
            one, other = list(first.values())[:2]
            raise ConfigError(
                f"{kind} steps {names.get(id(one))!r}, which is {one.dtype}, and {names.get(id(other))!r}, which is "
                f"{other.dtype}, and fairscale_sharded takes one dtype for each optimizer: give those of each dtype "
                "their own optimizer, or choose ddp"
            )
