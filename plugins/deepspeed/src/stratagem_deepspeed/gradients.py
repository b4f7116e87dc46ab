"""Makes every rank reduce the gradients of the same parameters, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from stratagem_sharding.torch_private import post_accumulate_hooks
from torch import nn

from stratagem import CombinationError
from stratagem_deepspeed.backwards import Backwards, HeldGradients, dropped_within_window
from stratagem_deepspeed.deepspeed_private import (
    COMPLETE,
    REDUCE,
    STEP_GROUP,
    as_plain_tensors,
    replace,
    restore,
)
from stratagem_deepspeed.idle import IdleParameters, used_anywhere


class Gradients:
    """Makes an engine of stage 1, 2 or 3 reduce and step the same gradients as plain PyTorch.

    By itself, the engine reduces gradients in the order in which they arrive. Ranks whose batches use different
    layers would then add up gradients of different parameters. It also steps a parameter without a gradient, with
    zeros or with the gradient of an earlier step.

    Args:
        engine: the DeepSpeed engine, with an optimizer.
        stage: 1, 2 or 3.
        names: id of a parameter → its name.
        device: of the tensors that collectives send.
        backwards: tracks backwards in your own training loop; None in a trainer's.

    Attributes:
        paused: see `IdleParameters`.
    """

    def __init__(
        self,
        engine: Any,
        stage: int,
        names: Mapping[int, str],
        device: torch.device,
        backwards: Backwards | None,
    ) -> None:
        self._backwards = backwards
        self._zero, self._stage, self._names, self._device = engine.optimizer, stage, names, device
        zero = self._zero
        self._groups: list[list[nn.Parameter]] = zero.fp16_groups if stage == 3 else zero.bit16_groups
        flats = zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
        self._idle = IdleParameters(zero, stage, self._groups, flats, names)
        self.paused = self._idle.paused
        # Backward reaches the last layers first.
        self._order = [(p, index) for index, group in enumerate(self._groups) for p in group][::-1]
        self._place = {id(p): place for place, (p, _) in enumerate(self._order)}
        self._arrivals: list[int] | None = []
        self._waiting: set[int] = set()
        self._next = 0
        self._used: set[int] = set()
        # One of the hooks is the engine's own.
        self._hooks = {id(p): len(post_accumulate_hooks(p) or ()) for p, _ in self._order}
        self._hooked = {each for each, hooks in self._hooks.items() if hooks > 1}
        self._stashed: list[tuple[Any, torch.Tensor]] = []
        self._held = HeldGradients(
            [p for p, _ in self._order],
            names,
            self._put_gradient,
            backwards.begin if backwards is not None else None,
        )
        self._reduce = replace(zero, REDUCE, self._arrive)
        self._finish = replace(zero, COMPLETE, self._complete)
        self._step = replace(zero, STEP_GROUP, self._step_group)

    def remove(self) -> None:
        """Remove placeholders and hooks, and give the engine its own methods back."""
        self._held.release()
        restore(self._zero, REDUCE, COMPLETE, STEP_GROUP)

    # In backward ------------------------------------------------------------------------------------

    def _arrive(self, parameter: nn.Parameter, *group: int) -> None:
        """Reduce a parameter's gradient, which is complete now, unless the order puts other gradients first."""
        if self._stage == 1 and not self._zero.is_gradient_accumulation_boundary():
            if self._backwards is not None:
                self._backwards.begin()
            if id(parameter) in self._hooked and self._zero.use_grad_accum_attribute:
                raise self._lacks_accumulation(parameter)
            return
        if self._backwards is not None:
            self._backwards.note_gradient()
        place = self._place[id(parameter)]
        if self._arrivals is not None:
            self._arrivals.append(place)
        self._used.add(place)
        self._waiting.add(place)
        while self._next in self._waiting:
            self._waiting.discard(self._next)
            self._reduce_at(self._next)
            self._next += 1

    def _reduce_at(self, place: int) -> None:
        parameter, group = self._order[place]
        if id(parameter) in self._hooked and not self._zero.is_gradient_accumulation_boundary():
            self._stash(parameter)
        if self._stage == 3:
            self._reduce(parameter)
        else:
            self._reduce(parameter, group)

    def _complete(self) -> None:
        """At the end of a backward, reduce the remaining gradients, with zeros for parameters that have none here."""
        zero = self._zero
        boundary = zero.is_gradient_accumulation_boundary()
        with self._trained():
            if self._stage < 3:
                zero.setup_buckets()
            if self._stage > 1 or boundary:
                for place in range(self._next, len(self._order)):
                    if self._has_gradient(self._order[place][0]):
                        self._used.add(place)
                    self._reduce_at(place)
            self._finish()
        for parameter, gradient in self._stashed:
            self._put_gradient(parameter, gradient)
        self._stashed.clear()
        self._waiting.clear()
        self._next = 0
        if boundary:
            self._check_hooks()
            self._agree()
            self._learn()
        if self._backwards is not None:
            self._backwards.end(boundary)
            self._held.place()

    def _has_gradient(self, parameter: Any) -> bool:
        """Return whether the parameter has a gradient; if not, set it to zeros."""
        zero = self._zero
        name = "grad_accum" if self._stage < 3 and zero.use_grad_accum_attribute else "grad"
        if getattr(parameter, name, None) is not None:
            return True
        dtype = zero.gradient_accumulation_dtype if name == "grad_accum" else parameter.dtype
        shape = parameter.ds_shape if self._stage == 3 else parameter.shape
        self._put_gradient(parameter, torch.zeros(shape, dtype=dtype, device=self._device), name)
        return False

    def _stash(self, parameter: Any) -> None:
        """Keep a gradient on this rank until the last micro-batch, and have zeros reduced.

        So the user's hook on the parameter sees the accumulated gradient, as in plain PyTorch.
        """
        gradient = parameter.grad
        self._stashed.append((parameter, gradient))
        self._put_gradient(parameter, torch.zeros_like(gradient))

    def _lacks_accumulation(self, parameter: nn.Parameter) -> CombinationError:
        return CombinationError(
            f"parameter {self._names[id(parameter)]!r} has a post-accumulate hook, and at stage 1 in 16 bits "
            "deepspeed accumulates gradients where the hook doesn't see them: use register_hook, set "
            "accumulate_grad_batches=1, or choose stage 2, or strategy ddp"
        )

    def _check_hooks(self) -> None:
        for parameter, _ in self._order:
            hooks = len(post_accumulate_hooks(parameter) or ())
            if hooks > self._hooks[id(parameter)]:
                raise CombinationError(
                    f"a post-accumulate hook was registered on parameter {self._names[id(parameter)]!r} after "
                    "deepspeed had taken the module, and would see gradients that are reduced already: register "
                    "it in __init__ or configure_model"
                )
            if hooks == 1:
                self._hooked.discard(id(parameter))

    def _put_gradient(self, parameter: Any, gradient: torch.Tensor, name: str = "grad") -> None:
        if self._stage < 3 or name != "grad":
            setattr(parameter, name, gradient)
            return
        # A gradient must have its parameter's shape, and the parameter is empty here: give it the shape meanwhile.
        with as_plain_tensors():
            data = parameter.data
            parameter.data = data.new_empty(gradient.shape)
            parameter.grad = gradient
            parameter.data = data

    def _agree(self) -> None:
        """Find out which parameters have a gradient on any rank. Collective."""
        used = used_anywhere([place in self._used for place in range(len(self._order))], self._device)
        self._idle.active = {id(p) for (p, _), there in zip(self._order, used) if there}
        self._used.clear()

    def _learn(self) -> None:
        """Use the order of gradients in rank 0's first backward on all ranks from now on. Collective."""
        if self._arrivals is None:
            return
        seen = dict.fromkeys(self._arrivals)
        order = [*seen, *(place for place in range(len(self._order)) if place not in seen)]
        self._arrivals = None
        sent = torch.tensor(order, device=self._device)
        dist.broadcast(sent, 0)
        self._order = [self._order[place] for place in sent.tolist()]
        self._place = {id(p): place for place, (p, _) in enumerate(self._order)}

    @contextmanager
    def _trained(self) -> Iterator[None]:
        """Set requires_grad on every parameter of the engine: it would skip parameters frozen meanwhile."""
        frozen = [p for p, _ in self._order if not p.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    # In the step ------------------------------------------------------------------------------------

    def before_step(self) -> None:
        """Refuse a step in which the engine's step count would be wrong for a parameter.

        Raises:
            CombinationError: see `IdleParameters.check`.
        """
        self._idle.check()

    def remove_engine_gradients(self) -> None:
        """Remove `EngineGradient`s, before autograd or the engine read gradients.

        Raises:
            GradientError: the user's code has dropped one within an accumulation window.
        """
        if self._backwards is not None and self._backwards.waits_for_reduction and self._held.was_dropped():
            raise dropped_within_window()
        self._held.remove()

    def check_assigned(self) -> None:
        """Refuse gradients that the user's code has assigned.

        Raises:
            GradientError: names the first parameter with one.
        """
        self._held.check_assigned()

    def _step_group(self, index: int) -> None:
        if self._idle.keep(index):
            self._step(index)
            self._idle.restore(index)
