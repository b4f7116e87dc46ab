"""What the loop calls per step under pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.optimizer_values import share_values
from stratagem_sharding.torch_private import backward_hooks, post_accumulate_hooks
from torch import nn
from torch.optim import Optimizer

from stratagem import Clipping, ConfigError, Prepared, Replica, SetupRequest
from stratagem.errors import GradientError
from stratagem.sdk.loops import weight_of
from stratagem.sdk.states import load_optimizer
from stratagem_pipeline.forward import PipelinedForward
from stratagem_pipeline.gradients import Gradients, by_kind
from stratagem_pipeline.training import Training

if TYPE_CHECKING:
    from stratagem import CheckpointReader
    from stratagem_pipeline.building import Pipeline


class PipelinePrepared(Prepared):
    """A module whose layers are distributed over ranks. Training steps and evaluations are collective in a copy.

    Args:
        request: as the `setup` hook received it; its tensors have been placed.
        pipeline: the stages and their ranks.
        open_among: opens a group of some ranks in each copy of the model, and returns this rank's group.
        averages: whether gradients are averaged over the ranks that read different batches.
    """

    has_all_states = False

    def __init__(
        self,
        request: SetupRequest,
        pipeline: Pipeline,
        open_among: Callable[[Sequence[int]], Any],
        averages: bool = True,
    ) -> None:
        if request.loop.training and request.steps is None:
            raise ConfigError(
                "a pipeline runs forward and backward of a training step at once, and your own training loop calls "
                "them separately: train with stratagem.Trainer, or choose another strategy for this loop"
            )
        if (
            request.steps is not None
            and request.loop.training
            and "training_step" in request.steps.step_end_fns
        ):
            raise ConfigError(
                "the module defines training_step_end, which makes one loss of those of a batch's "
                "parts, and a pipeline needs the loss of each part separately: compute it in training_step"
            )
        named = [(name, p) for name, p in request.original_module.named_parameters() if not p.is_meta]
        self._named = named
        self._calls_hooks_once = pipeline.micro_batches == 1
        if request.loop.training:
            self._refuse_hooks()
        self._held = {id(parameter) for _, parameter in named}
        self._kept: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._are_complete = False
        optimizers = request.make_optimizers() if request.loop.training else ()
        self._whole = [[list(group["params"]) for group in each.param_groups] for each in optimizers]
        for optimizer in optimizers:
            self._drop_foreign(optimizer)
        super().__init__(request, request.module, optimizers)
        self._collectives = request.collectives
        self._pipeline = pipeline
        self._forward = PipelinedForward(pipeline)
        self._training: Training | None = None
        if request.loop.training:
            self._gradients = Gradients(
                [parameter for _, parameter in named],
                pipeline.holders,
                sorted({ranks for ranks in pipeline.holders.values() if len(ranks) > 1}),
                pipeline.line.pipe,
                request.collectives.data if averages else None,
                open_among,
            )
            assert request.steps is not None
            self._training = Training(pipeline, request.steps.chunk_module, self._call, request)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise ConfigError(
            "a pipeline runs forward and backward of a training step at once: call the module for evaluation alone"
        )

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self._forward.answering():
            return super().forward(*args, **kwargs)

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        self._refuse_hooks()
        self._put_aside()
        output = self._run(args, divisor, sync)
        weight = weight_of(output)
        if weight is not None or self.loss_weights.is_used:
            self.loss_weights.add(weight, is_done=True)
        if sync:
            self._reduce()
            for parameter, before in self._kept:
                parameter.grad = before if parameter.grad is None else parameter.grad + before
            self._kept, self._are_complete = [], True
        return output

    def _put_aside(self) -> None:
        """Set gradients of an earlier step aside. This step's are reduced without them, and then added to them."""
        if self._are_complete:
            kept = [(p, p.grad) for _, p in self._named if p.grad is not None]
            if kept and self.loss_weights.is_used:
                raise GradientError(
                    "gradients of the step before are still there, and those of losses with weights can't be added "
                    "to them in a pipeline: call optimizer.zero_grad() after each step"
                )
            self._kept, self._are_complete = kept, False
            for parameter, _ in kept:
                parameter.grad = None

    def zero_grad(self, index: int) -> None:
        super().zero_grad(index)
        dropped = {id(parameter) for parameter in self._parameters[index]}
        self._kept = [(p, before) for p, before in self._kept if id(p) not in dropped]

    def _run(self, args: tuple[Any, ...], divisor: float, sync: bool) -> Any:
        """Run forward and backward of a batch; `sync` says whether `_reduce` comes after it."""
        assert self._training is not None
        return self._training.run(args, divisor, self.loss_weights.unit)

    def _reduce(self) -> None:
        """Reduce the gradients accumulated in this window. Collective."""
        self._gradients.reduce()

    def _refuse_hooks(self) -> None:
        """Refuse hooks that would be called with the gradient of one micro-batch: a hook may not be linear."""
        for name, parameter in () if self._calls_hooks_once else self._named:
            if backward_hooks(parameter) or post_accumulate_hooks(parameter):
                raise ConfigError(
                    f"{name!r} has a hook on its gradient (register_hook or register_post_accumulate_grad_hook), "
                    "which a pipeline would call once per part of a batch: set micro_batches=1 (with "
                    "schedule='gpipe'), or choose ddp"
                )

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        with_grads = [p for p in self._parameters[index] if p.grad is not None]
        if clipping.max_value is not None:
            for each in by_kind(with_grads):
                nn.utils.clip_grad_value_(each, clipping.max_value)
        if clipping.max_norm is None:
            return None
        return self._gradients.clip_norm(
            self._parameters[index], clipping.max_norm, clipping.norm_type, self.device
        )

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        # Ranks with the same stages in different copies of the pipeline hold the same layers.
        stages = str(sorted(self._pipeline.line.own))
        for name, value in super().replicas():
            if isinstance(value, torch.Tensor):
                if not value.is_meta:
                    yield Replica(name, value, "stages", stages)
            else:
                yield name, value

    # Checkpoint ---------------------------------------------------------------------------------

    def model_tensors(self) -> dict[str, torch.Tensor]:
        return {key: tensor for key, tensor in super().model_tensors().items() if not tensor.is_meta}

    def model_names(self, tensors: Mapping[str, torch.Tensor]) -> Collection[str]:
        return super().model_tensors().keys()

    def state(self) -> dict[str, Any]:
        with self._whole_groups():
            state = super().state()
        share_values(state["optimizers"], self._collectives)
        extras = self._collectives.gather_objects(self._own_extra(state["extra"]))
        state["extra"] = {name: value for extra in reversed(extras) for name, value in extra.items()}
        if self._training is not None:
            state["pipeline"] = self._training.seeds.state()
        return state

    def _own_extra(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Return extra states of modules that run on this rank. Modules of other ranks' stages have stale ones."""
        line = self._pipeline.line
        of_stage = [{id(m) for layer in layers for m in layer.modules()} for layers in line.layers]
        own = set().union(*(of_stage[stage] for stage in line.own))
        foreign = set().union(*of_stage) - own
        modules = dict(self.original_module.named_modules())
        return {
            key: value for key, value in extra.items() if id(modules[key.rpartition(".")[0]]) not in foreign
        }

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        if self._training is not None and not model_only:
            self._training.seeds.load_state(state.get("pipeline", {}))

    def load_optimizer(self, index: int, reader: CheckpointReader, saved: Sequence[dict[str, Any]]) -> None:
        optimizer, owned = self.optimizers[index], set(self._parameters[index])
        with self._whole_groups():
            load_optimizer(self.original_module, optimizer, index, reader, saved, owned=owned)

    def release(self) -> None:
        super().release()
        self._training = None
        self._forward.release()
        del self._pipeline
        self._gradients = None  # type: ignore[assignment]  # not used after release

    def _drop_foreign(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) in self._held or not p.is_meta]

    @contextmanager
    def _whole_groups(self) -> Iterator[None]:
        """While active, optimizers have the parameters of all ranks, as the user passed them."""
        for optimizer, groups in zip(self.optimizers, self._whole):
            for group, parameters in zip(optimizer.param_groups, groups):
                group["params"] = list(parameters)
        try:
            yield
        finally:
            for optimizer in self.optimizers:
                self._drop_foreign(optimizer)
