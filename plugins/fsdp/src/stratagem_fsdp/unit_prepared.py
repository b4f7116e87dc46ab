"""`UnitPrepared`: base of the `Prepared` classes of strategies on `fully_shard`."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from stratagem_sharding.kept_shards import leave_shards
from stratagem_sharding.optimizer_values import share_values
from stratagem_sharding.part_of_optimizer import StatesOfPart, no_state_dict
from stratagem_sharding.whole_steps import OwnedStep, ReplicatedStep, sharded_step, sharded_step_again
from stratagem_sharding.whole_tensors import (
    ReadingExchange,
    copies_as_before,
    copies_whole,
    hold_whole,
    on_shards,
)
from torch import nn
from torch.distributed.tensor import DTensor

from stratagem import Clipping, PrecisionError, Prepared, SetupRequest
from stratagem_fsdp.gather_order import GatherOrder
from stratagem_fsdp.kinds import by_kind
from stratagem_fsdp.none_losses import expect_none_everywhere, reduce_kept_gradients
from stratagem_fsdp.shard_mirror import ShardMirror
from stratagem_fsdp.sharded_use import explaining
from stratagem_fsdp.unit_gradients import UnitGradients

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from stratagem_sharding.rank_buffers import RankBuffers
    from torch.distributed.fsdp import FSDPModule
    from torch.optim import Optimizer

    from stratagem import CheckpointReader
    from stratagem_fsdp.sharding import Sharded


class UnitPrepared(Prepared):
    """A module whose units are each gathered before they compute and resharded afterwards.

    Args:
        request: as the `setup` hook received it.
        module: the sharded module to call for a forward.
        sharded: its units and unsharded parameters.
        freed: the units that torch reshards after their forward.
        step_root: the unit that each step calls, if there is one.
        rank_buffers: compares the ranks' buffers.

    Attributes:
        sharded: as given.
        rank_buffers: as given.
        mirror: writes changes to gathered parameters back to the shards.
        order: compares the order in which ranks gather units.
        gradients: reduces or refuses gradients that aren't averages over ranks.
    """

    strategy_name: ClassVar[str]
    """Name of the strategy, for messages."""
    advice: ClassVar[str]
    """Advice for parameters that are used while they are sharded, for messages."""
    carries_hooks = True
    supports_inference_mode = False

    def __init__(
        self,
        request: SetupRequest,
        module: nn.Module,
        sharded: Sharded,
        *,
        freed: Collection[FSDPModule],
        step_root: FSDPModule | None,
        rank_buffers: RankBuffers,
    ) -> None:
        self.sharded = sharded
        self._world_size = request.collectives.world_size
        self.leaves_module_sharded = self._world_size > 1
        super().__init__(request, module)
        self._refuse_scaling()
        self._collectives = request.collectives
        self.rank_buffers = rank_buffers
        self._micro_batch = 0
        self.reduces, self._unreduced = True, False
        self._shards = [each for each in self.original_module.parameters() if isinstance(each, DTensor)]
        self.mirror = ShardMirror(sharded.units, freed, self.original_module)
        self.order = GatherOrder(
            sharded.units, step_root, self.original_module, request.collectives, self.strategy_name
        )
        ReadingExchange(request.collectives)
        hold_whole(self.original_module.parameters())
        copies_whole(self.original_module, sharded.snapshot, self.reshard)
        self.gradients = UnitGradients(
            sharded.units,
            sharded.roots,
            self.original_module,
            request.collectives,
            self.strategy_name,
            self.device,
        )
        self._steps = [sharded_step(each, self.strategy_name) for each in self.optimizers]
        self.has_all_states = not any(map(self._has_owners, range(len(self.optimizers))))

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        if not sync:
            return super().forward_backward(*args, divisor=divisor, sync=False)  # which comes back
        self._micro_batch += 1
        output = super().forward_backward(*args, divisor=divisor)
        if output is None:
            if self._world_size > 1:
                expect_none_everywhere(self._collectives, self._micro_batch, self.strategy_name)
            if self.reduces and self._unreduced:
                for root in self.sharded.roots:
                    reduce_kept_gradients(root)
                self._unreduced = False
                self._average_whole()
        return output

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        self.mirror.settle()
        with self.explaining(), self.recovering(in_backward=True):
            super().backward(loss, **kwargs)
        self.gradients.note_backward()
        self._unreduced = not self.reduces and bool(self.sharded.roots)
        if self.reduces and self._world_size > 1:
            self._average_whole()
            self.order.end_backward(self._shards)

    @on_shards()
    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        kinds = by_kind(self._parameters[index])
        if len(kinds) < 2:
            before = super().clip(index, clipping)
            return None if before is None else _gathered(before)
        self.precision.unscale(self.optimizers[index])
        if clipping.max_value is not None:
            for parameters in kinds:
                nn.utils.clip_grad_value_(parameters, clipping.max_value)
        if clipping.max_norm is None:
            return None
        # The norm of a DTensor counts each element of the full tensor once; an unsharded one is equal on all ranks.
        grads = [[p.grad for p in parameters if p.grad is not None and p.numel()] for parameters in kinds]
        norms = [_gathered(nn.utils.get_total_norm(each, clipping.norm_type)) for each in grads]
        device = norms[0].device
        norms = [norm.to(device) for norm in norms]
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), clipping.norm_type)
        for parameters in kinds:
            nn.utils.clip_grads_with_norm_(parameters, clipping.max_norm, total)
        return total

    def complete_gradients(self, index: int) -> None:
        self.gradients.complete(self._parameters[index], type(self.optimizers[index]).__name__)
        self._average_whole()

    def average_gradients(self, index: int) -> None:
        self.gradients.average(self._parameters[index])
        self._average_whole()

    def zero_grad(self, index: int) -> None:
        super().zero_grad(index)
        self.gradients.drop(self._parameters[index])

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        self._before_step(index)
        step = self._steps[index]
        evaluate = None if closure is None else step.seen_whole(partial(self._evaluated, index, closure))
        with step.stepping():
            return super().step(index, evaluate)

    def _evaluated(self, index: int, closure: Callable[[], Any]) -> Any:
        loss = closure()
        self._before_step(index)
        return loss

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        self.reshard()
        return {**super().optimizer_tensors(), **self.rank_buffers.tensors()}

    def state(self) -> dict[str, Any]:
        self.reshard()
        state = super().state()
        if not self.has_all_states:
            share_values(state["optimizers"], self._collectives)
        return state

    def optimizer_state(self, index: int) -> Any:
        if self._has_owners(index):
            return StatesOfPart(self.optimizers[index], self.strategy_name)
        return super().optimizer_state(index)

    def optimizer_state_dict(self, index: int) -> dict[str, Any]:
        if self._has_owners(index):
            raise no_state_dict(self.optimizers[index], self.strategy_name)
        return super().optimizer_state_dict(index)

    def load_optimizer_state_dict(self, index: int, state: dict[str, Any]) -> None:
        if self._has_owners(index):
            raise no_state_dict(self.optimizers[index], self.strategy_name)
        super().load_optimizer_state_dict(index, state)

    def steps_all_at_once(self, index: int) -> bool:
        return isinstance(self._steps[index], ReplicatedStep)

    def optimizer_tried_again(self, index: int, tried: Optimizer) -> None:
        optimizer = self.optimizers[index]
        self._steps[index] = sharded_step_again(self._steps[index], optimizer, tried, self.strategy_name)
        self.has_all_states = not any(map(self._has_owners, range(len(self.optimizers))))

    def _has_owners(self, index: int) -> bool:
        """Whether each rank has optimizer states of only some parameters."""
        return isinstance(self._steps[index], OwnedStep)

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        self.reshard()
        super().load(reader, state, model_only=model_only)
        if not model_only:
            self.rank_buffers.load(reader)

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        yield from super().replicas()
        yield "which sharded blocks and parameters were used", self.order.history
        yield from self.mirror.replicas()

    def release(self) -> None:
        super().release()
        self.order.release()
        self.reshard()
        self.mirror.release()
        copies_as_before(self.original_module)
        self.gradients.release()
        self.left_shards = leave_shards(self.original_module, self.sharded.snapshot, self._world_size)
        del self.sharded, self._shards

    def explaining(self) -> AbstractContextManager[None]:
        return explaining(self.original_module, self.sharded.units, self.strategy_name, self.advice)

    @contextmanager
    def recovering(self, in_backward: bool = False) -> Iterator[None]:
        """Run a forward or backward; after an exception, reset the state so that the loop may continue."""
        try:
            yield
        except Exception:
            self.order.abandon_forward()
            self.gradients.abandon(in_backward)
            raise

    def _refuse_scaling(self) -> None:
        """Refuse loss scaling for parameters on several meshes: torch's loss scaler needs one."""
        if not self.precision.scales_loss:
            return
        for index in range(len(self.optimizers)):
            if len(by_kind(self._parameters[index])) > 1:
                names = {id(parameter): name for name, parameter in self.original_module.named_parameters()}
                whole = [p for p in self._parameters[index] if not isinstance(p, DTensor)]
                raise PrecisionError(
                    f"parameter {names[id(whole[0])]!r} has no dimension along which to shard it, and "
                    f"precision={self.precision.name!r} can't scale it beside shards: give it one, as in "
                    "torch.ones(1), or use bf16-mixed"
                )

    def set_reduces(self, reduces: bool) -> None:
        if reduces == self.reduces:
            return  # torch's setter visits all modules
        self.reduces = reduces
        for root in self.sharded.roots:
            root.set_requires_gradient_sync(reduces)

    def reshard(self) -> None:
        """Free parameters that a forward left gathered, as after an evaluation or a batch without a loss."""
        self.mirror.settle()
        for unit in self.sharded.units:
            unit.reshard()

    def _before_step(self, index: int) -> None:
        """Free gathered copies: the step changes the shards, and the copies would be stale."""
        self.reshard()

    def _average_whole(self) -> None:
        """Average gradients of unsharded parameters, in strategies that have some. Collective."""


def _gathered(norm: torch.Tensor) -> torch.Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
