"""`Prepared`: a module and its optimizers, ready to be stepped; the result of the `setup` hook.

This class trains on one device, and is the base class for every strategy's own. A strategy with its own backward
overrides `backward`. A strategy whose engine steps overrides `step`. A strategy that runs forward and backward of a
whole batch, such as a pipeline or replicas that split the batch, overrides `forward_backward`. The loop calls only
methods of this class, and never checks for a subclass.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import nn
from torch.optim import Optimizer

from stratagem.data.batches import moved
from stratagem.errors import ConfigError
from stratagem.plugin.requests import Clipping, SetupRequest
from stratagem.precision.optimizer_name import optimizer_name
from stratagem.precision.skippable import is_skippable, skippable
from stratagem.strategies.loss_sum import loss_of, weight_of
from stratagem.strategies.loss_weights import LossWeights
from stratagem.strategies.model_state import load_model
from stratagem.strategies.optimizer_state import (
    describe_optimizer,
    load_optimizer,
    optimizer_replicas,
    optimizer_tensors,
)

if TYPE_CHECKING:
    from stratagem.checkpoint.base import CheckpointReader

_TORCH_ZERO_GRAD = Optimizer.zero_grad


class Prepared:
    """What the loop calls per step. All ranks call the methods in the same order, unless a method says otherwise.

    Args:
        request: as the `setup` hook received it.
        module: the module to call for a forward; `request.module` moved to the device when None.
        optimizers: made by `request.make_optimizers()` when None.

    Attributes:
        module: the wrapped module; a strategy that synchronises in its forward puts its wrapper here.
        original_module: the user's module, whose names are used in checkpoints.
        optimizers: in the order in which the user gave them; empty when not training.
        precision: the run's precision.
        device: the device to which batches are moved.
        loss_weights: weights of losses that are sums, for loops and this class's own methods.
        is_direct: whether a forward only calls `module`, without autocast or conversion of the input.
        shows_unreduced_gradients: whether `grad` has a parameter's gradient before the last backward of a window;
            True unless set.
        leaves_module_sharded: whether the user's module has only this process's shards after `release`.
        left_shards: set by `release` in that case. `setup` of the next run in this process gets it as
            `SetupRequest.left_shards`, if its strategy's `can_restore` accepts it. None: no run can continue with it.
        carries_hooks: whether hooks of replaced parameters were moved to the tensors that accumulate gradients; False
            unless set.
        has_all_states: whether this rank has states of every parameter, or of a shard of each; True unless set.
        has_copies: whether ranks hold copies, which are compared across ranks during training; True unless set.
        supports_inference_mode: whether evaluations may run under `torch.inference_mode`; True unless set. False
            where an evaluation fills buffers that training uses later, such as those for gathered shards: torch lets
            training neither write to them nor save them for backward.
    """

    shows_unreduced_gradients = True
    leaves_module_sharded = False
    left_shards: object | None = None
    carries_hooks = False
    has_all_states = True
    has_copies = True
    supports_inference_mode = True

    def __init__(
        self,
        request: SetupRequest,
        module: nn.Module | None = None,
        optimizers: Sequence[Optimizer] | None = None,
    ) -> None:
        self.precision = request.precision
        self.device = request.device
        self.clipping = request.loop.clipping
        self.original_module = request.original_module
        self.module = module if module is not None else place(request)
        if optimizers is None:
            optimizers = request.make_optimizers() if request.loop.training else ()
        self.optimizers: tuple[Optimizer, ...] = tuple(optimizers)
        self._data_ranks = request.collectives.data.world_size
        self.loss_weights = LossWeights(self, request.collectives.data)
        # Computed once: each forward in full precision then costs only the module's call.
        self.is_direct = self.precision.autocast() is None and not self.precision.converts_input

    @property
    def _parameters(self) -> Sequence[list[nn.Parameter]]:
        """The parameters of each optimizer; groups may be added while it trains."""
        return [[p for group in each.param_groups for p in group["params"]] for each in self.optimizers]

    # Per step -----------------------------------------------------------------------------------

    @skippable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped module under the run's precision."""
        if self.is_direct:
            return self.module(*args, **kwargs)
        return self._call(self.module, *args, **kwargs)

    @skippable
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module for evaluation, without synchronisation: ranks may have different numbers of batches."""
        return self.forward(*args, **kwargs)

    def evaluating(self) -> AbstractContextManager[Any]:
        """Return a context for the batches of an evaluation, in which all ranks have the same model. Collective."""
        return nullcontext()

    def forward_backward(self, *args: Any, divisor: float = 1, sync: bool = True) -> Any:
        """Run forward and backward of one micro-batch.

        Args:
            args: for the wrapped module.
            divisor: divides the loss. It is the number of micro-batches of this optimizer step, or the step's number
                of samples divided by this micro-batch's.
            sync: whether gradients are reduced over ranks; True for the last micro-batch of a step.

        Returns:
            What the module returned: a scalar loss, a mapping with a "loss", a `LossSum`, or None to skip.
        """
        if not sync:
            with self.no_sync():
                return self.forward_backward(*args, divisor=divisor)
        output = self.forward(*args)
        self.backward_of(output, divisor)
        return output

    def backward_of(self, output: Any, divisor: float = 1) -> bool:
        """Run backward of the loss in a training step's output. Return whether there is a loss.

        Args:
            output: what the wrapped module returned.
            divisor: as in `forward_backward`, for a loss without a weight. A loss with a weight isn't divided here.
        """
        loss = output if isinstance(output, torch.Tensor) else loss_of(output)
        weight = None if loss is output else weight_of(output)
        if weight is not None or self.loss_weights.is_used:
            unit = self.loss_weights.add(weight, loss is not None)
            if loss is not None:
                self.backward(loss * unit)
        elif loss is not None:
            self.backward(loss if divisor == 1 else loss / divisor)
        return loss is not None

    def averaged_ranks(self) -> int:
        """Return the number of ranks over which gradients are averaged, all of which read different data.

        Gradients of losses with weights are multiplied by this number, before or after they are averaged. A strategy
        that sums gradients returns 1.

        Raises:
            CombinationError: the strategy doesn't step by the average of all ranks' gradients.
        """
        return self._data_ranks

    def manual_step(self, *args: Any) -> Any:
        """Call the module for a step that runs its own backward, any number of times."""
        return self.forward(*args)

    @skippable
    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Scale a scalar loss, and accumulate gradients from it. `kwargs` go to `Tensor.backward`."""
        self.precision.scale(loss).backward(**kwargs)  # type: ignore[no-untyped-call]  # torch has no types for it

    def abandon_backward(self) -> None:
        """Clean up after a backward that raised on all ranks, so that the loop can go on. Not collective."""

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return a context for forward and backward of a micro-batch whose gradients aren't reduced yet."""
        return nullcontext()

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        """Limit the gradients of optimizer `index`.

        Returns:
            The total norm before clipping, a scalar on the device, when `max_norm` is given.
        """
        optimizer, parameters = self.optimizers[index], self._parameters[index]
        self.precision.unscale(optimizer)
        if clipping.max_value is not None:
            nn.utils.clip_grad_value_(parameters, clipping.max_value)
        if clipping.max_norm is None:
            return None
        return nn.utils.clip_grad_norm_(parameters, clipping.max_norm, clipping.norm_type)

    def complete_gradients(self, index: int) -> None:
        """Complete the gradients of optimizer `index` before they are clipped or stepped. Collective.

        The user's code may have made gradients in ways that a strategy doesn't reduce: a micro-batch within
        `no_sync` that was the last one, a second backward of one graph, `torch.autograd.grad`. A strategy with
        several ranks averages gradients whose average is well defined, and refuses the rest.

        Raises:
            GradientError: names the parameter whose gradient isn't complete, and what to write instead.
        """

    def average_gradients(self, index: int) -> None:
        """Average the gradients of optimizer `index` over ranks, however they were computed. Collective."""
        self.complete_gradients(index)

    def step_late_optimizer(self, optimizer: Optimizer) -> None:
        """Complete the gradients of an optimizer that `setup` didn't get, or refuse it. Collective.

        Called before each step of an optimizer that has parameters of this module.

        Raises:
            ConfigError: this strategy has to get optimizers in `setup`.
        """
        raise ConfigError(
            f"{type(optimizer).__name__} steps parameters of {type(self.original_module).__name__}, and setup() "
            "didn't get it: pass optimizers to setup() with their module, and step those that it returns"
        )

    def optimizer_method(self, index: int, method: MethodType) -> Any:
        """Return a method of the user's optimizer that torch's optimizers don't have, in the form that a loop calls.

        `setup` gets `train` and `eval` this way, with which schedule-free optimizers exchange parameters.

        Raises:
            ConfigError: this rank doesn't have the parameters and states that the method may look at or change.
        """
        if self.has_all_states:
            return method
        raise ConfigError(
            f"{type(method.__self__).__name__}.{method.__name__} can't be called where each rank has the states of "
            "some parameters: choose an optimizer for which step() is enough, or strategy ddp"
        )

    def steps_all_at_once(self, index: int) -> bool:
        """Whether optimizer `index` sees all parameters whole, as in one process, so that any settings work."""
        return False

    def optimizer_tried_again(self, index: int, tried: Optimizer) -> None:
        """Prepare to step optimizer `index` with settings that have changed since `setup`.

        Args:
            index: of the optimizer.
            tried: an optimizer with the current settings. The strategy's `refuse_optimizer` has accepted it.
        """

    def optimizer_name(self, index: int) -> str:
        """Return the name of the class of the user's optimizer `index`, for messages."""
        return optimizer_name(self.optimizers[index])

    def optimizer_state(self, index: int) -> Any:
        """Return the value of `optimizer.state` in the user's own training loop: states by parameter."""
        return self.optimizers[index].state

    def optimizer_state_dict(self, index: int) -> dict[str, Any]:
        """Return the value of `optimizer.state_dict()` in the user's own training loop. A rank may call it alone."""
        return self.optimizers[index].state_dict()

    def load_optimizer_state_dict(self, index: int, state: dict[str, Any]) -> None:
        """Run `optimizer.load_state_dict(state)` of the user's own training loop."""
        self.optimizers[index].load_state_dict(state)

    def gradient_replicas(self, index: int) -> Iterator[tuple[str, Any]]:
        """Yield (name, gradient) for gradients that must be equal on all ranks before optimizer `index` steps."""
        return iter(())

    @skippable
    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        """Step optimizer `index`; False when the step was skipped, as after an overflow."""
        return self.precision.step(self.optimizers[index], closure)

    @property
    def steps_directly(self) -> bool:
        """Whether a loop may call an optimizer's own `step` instead; False where a subclass overrides `step`."""
        return is_skippable(self.step) and self.precision.steps_directly

    @property
    def forwards_directly(self) -> bool:
        """Whether a loop may call the module instead; False where `forward` or `evaluate` is overridden."""
        return self.is_direct and is_skippable(self.forward) and is_skippable(self.evaluate)

    @property
    def backwards_directly(self) -> bool:
        """Whether one `backward` serves several modules, because it only scales the loss; False where overridden."""
        return is_skippable(self.backward)

    def zero_grad(self, index: int) -> None:
        """Drop the gradients of optimizer `index`."""
        optimizer = self.optimizers[index]
        # torch's own method takes microseconds to look for a profiler. Any other method is called.
        if getattr(optimizer.zero_grad, "__func__", None) is not _TORCH_ZERO_GRAD:
            optimizer.zero_grad()
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    # Copies -------------------------------------------------------------------------------------

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        """Yield what must be equal on ranks that hold copies: (name, value), or `Replica`s. Not collective.

        By default, these are the parameters, the set of trained ones, and optimizers' settings and step counts. A
        strategy adds buffers if it keeps them equal, and leaves out values that differ on purpose. A DTensor's shard
        is compared among the ranks that have the same shard.
        """
        trained = []
        for name, parameter in self.original_module.named_parameters():
            yield f"parameter {name!r}", parameter
            if parameter.requires_grad:
                trained.append(name)
        yield "the set of parameters that require gradients", trained
        for index, optimizer in enumerate(self.optimizers):
            yield from optimizer_replicas(index, optimizer, self.has_all_states)

    def copy_module(self, memo: dict[int, Any]) -> nn.Module:
        """Return a copy of the user's module, for `copy.deepcopy` of the module that `setup` returned.

        Args:
            memo: the memo of `copy.deepcopy`.
        """
        return copy.deepcopy(self.original_module, memo)

    # Data ---------------------------------------------------------------------------------------

    def dataloader(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return an iterable over `loader` whose batches are on the device; it keeps the length."""
        return moved(loader, self.device)

    # Checkpoint ---------------------------------------------------------------------------------

    def model_tensors(self) -> dict[str, torch.Tensor]:
        """Return this rank's parameters and buffers by "model/<name>", as whole tensors or DTensors."""
        state = self.original_module.state_dict()
        return {f"model/{name}": value for name, value in state.items() if isinstance(value, torch.Tensor)}

    def model_names(self, tensors: Mapping[str, torch.Tensor]) -> Collection[str]:
        """Return the keys of all the module's tensors.

        A strategy under which each rank has only some of the tensors returns the keys of all ranks.

        Args:
            tensors: this rank's, as `model_tensors` returned them.
        """
        return tensors.keys()

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors in this rank's optimizer states, by "optimizer/<index>/<name>/<state>"."""
        return optimizer_tensors(self.original_module, self.optimizers)

    def state(self) -> dict[str, Any]:
        """Return the state that isn't tensors: parameter groups, extra states of modules, the precision's state."""
        state = self.original_module.state_dict()
        extra = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
        return {
            "optimizers": [describe_optimizer(self.original_module, each) for each in self.optimizers],
            "extra": extra,
            "precision": self.precision.state_dict(),
            **({"loss_weights": weights} if (weights := self.loss_weights.state()) else {}),
        }

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        """Restore the tensors in `reader`, and the state that `state()` returned when they were saved.

        Raises:
            CheckpointError: names or shapes differ from this module's.
        """
        targets = self.model_tensors()
        load_model(self.original_module, targets, reader, state.get("extra", {}), self.model_names(targets))
        if model_only:
            return
        saved = state.get("optimizers", [])
        for index in range(len(self.optimizers)):
            self.load_optimizer(index, reader, saved)
        self.precision.load_state_dict(state.get("precision", {}))
        self.loss_weights.load_state(state.get("loss_weights", {}))

    def load_optimizer(self, index: int, reader: CheckpointReader, saved: Sequence[dict[str, Any]]) -> None:
        """Restore the state of optimizer `index`; `saved` is the saved "optimizers" entry of `state()`."""
        load_optimizer(self.original_module, self.optimizers[index], index, reader, saved)

    def restore_module(self) -> None:
        """Give the user's module the values that a checkpoint would have: equal copies, weights in full precision.

        Collective. Called before `release`, after a run without errors.
        """

    def release(self) -> None:
        """Drop everything that refers to the process group. Called once, before the group is closed."""
        self.module = self.original_module
        self.loss_weights.release()

    def _call(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self.precision.converts_input:
            args = self.precision.convert_input(args)
            kwargs = self.precision.convert_input(kwargs)
        with self.precision.autocast() or nullcontext():
            return module(*args, **kwargs)


def place(request: SetupRequest) -> nn.Module:
    """Convert `request.module` to the run's precision and move it to the device."""
    return request.precision.convert_module(request.module).to(request.device)
