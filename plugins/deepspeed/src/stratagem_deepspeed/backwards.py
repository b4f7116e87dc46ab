"""Refuses orders of backwards and steps that the engine computes wrongly, and gradients that it would ignore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn
from weakref import ref

import torch
from stratagem_sharding.held_gradient import HeldGradient
from stratagem_sharding.torch_private import backward_number, view_base
from torch import nn

from stratagem.errors import GradientError
from stratagem.sdk.torch_private import tensor_version
from stratagem_deepspeed.deepspeed_private import (
    OUTPUT_PROLOGUE,
    PROLOGUE,
    as_plain_tensors,
    replace,
    restore,
    runs_own_backward,
)

_WHAT_TO_DO = {
    True: "deepspeed can't drop it, so start again from a checkpoint",
    False: "call optimizer.zero_grad() after the exception",
}
"""What to do after a backward that didn't finish: True for stages 1 to 3, False for stage 0."""


class Backwards:
    """Tracks the backwards since the last optimizer step.

    Args:
        engine: the DeepSpeed engine, with an optimizer.
        stage: the ZeRO stage.
        before_direct: called at the start of a backward that doesn't go through the engine, as `loss.backward()`.
        named: the module's parameters with their names.
    """

    def __init__(
        self, engine: Any, stage: int, before_direct: Callable[[], None], named: Iterable[tuple[str, Any]]
    ) -> None:
        self._engine, self._stage, self._before_direct = engine, stage, before_direct
        self._named = list(named)
        self._required: list[bool] | None = None
        """For each parameter, its `requires_grad` at the end of the last forward."""
        self._count = 0
        self._reduced = self._failed = False
        self._forward_came = False
        self._number: int | None = None
        self._prologue = replace(engine, PROLOGUE, self._begin_any)
        self._each_output = replace(engine, OUTPUT_PROLOGUE, self._begin_at_output)

    def remove(self) -> None:
        """Give the engine its own methods back."""
        restore(self._engine, PROLOGUE, OUTPUT_PROLOGUE)
        del self._engine, self._prologue, self._each_output, self._before_direct

    def note_forward(self) -> None:
        """Record the start of a forward, if gradients are enabled."""
        self._forward_came = self._forward_came or torch.is_grad_enabled()

    def note_forward_end(self) -> None:
        """Record which parameters require gradients at the end of a forward."""
        if self._stage and torch.is_grad_enabled():
            self._required = [parameter.requires_grad for _, parameter in self._named]

    def refuse_other_flags(self) -> None:
        """Refuse parameters that were frozen or unfrozen since the last forward, at stages 1 to 3.

        Raises:
            GradientError: names the first one.
        """
        for (name, parameter), required in zip(self._named, self._required or ()):
            if parameter.requires_grad is not required:
                raise GradientError(
                    f"requires_grad of {name!r} has become {parameter.requires_grad} between a forward and its "
                    f"backward, in which deepspeed's stage {self._stage} expects the gradients of that forward: "
                    "freeze and unfreeze parameters before the forward, or choose strategy ddp"
                )

    def begin(self) -> None:
        """Check that a backward may begin.

        Raises:
            GradientError: the engine has already reduced the gradients of this step, and would add new ones wrongly;
                at stage 3, no forward came before this backward; or an earlier backward didn't finish.
        """
        if self._number is not None and self._number != backward_number():
            self._failed = True
        self._refuse_failed()
        if self._reduced and self._stage:
            raise GradientError(
                f"a second backward came after the one whose gradients deepspeed's stage {self._stage} has reduced "
                "for this step, and zero_grad doesn't take them back: add up the losses and call runtime.backward "
                "once, put all backwards of a step but the last one into runtime.no_sync(), or choose strategy ddp "
                "or fsdp"
            )

        if self._stage == 3 and self._count and not self._forward_came:
            raise GradientError(
                "a second backward came without a forward after the first one, and deepspeed's stage 3 trains "
                "wrongly after two forwards and then two backwards: run each backward before the next forward of "
                "the module that setup() returned, or add up the losses and call runtime.backward once"
            )

    def note_gradient(self) -> None:
        """Check a backward when its gradient reaches the engine, and note which backward it is.

        Raises:
            GradientError: as for `begin`.
        """
        self.begin()
        self._number = backward_number()

    def end(self, reduced: bool) -> None:
        """Record the end of a backward; `reduced` is True for the last backward of a step."""
        self._count += 1
        self._reduced, self._number, self._forward_came = reduced, None, False

    def fail(self) -> None:
        """Record that a backward raised."""
        self._failed = True

    @property
    def waits_for_reduction(self) -> bool:
        """Whether the gradients accumulated since the last step haven't been reduced yet."""
        return self._count > 0 and not self._reduced

    def check_step(self) -> None:
        """Refuse a step unless the engine has reduced the gradients that it steps with.

        Raises:
            GradientError: a backward didn't finish, its gradients weren't reduced, or there was no backward.
        """
        if self._number is not None:
            self._failed = True
        self._refuse_failed()
        if self.waits_for_reduction:
            raise GradientError(
                "step() came after a backward within runtime.no_sync(), whose gradients deepspeed hasn't reduced: "
                "leave the last backward of each step, also of an incomplete last window, outside of it"
            )
        if not self._reduced:
            raise GradientError(
                "step() came without a runtime.backward since the last one, and deepspeed steps nothing but the "
                "gradients of a backward, not what torch.autograd.grad returns: compute them by "
                "runtime.backward(loss), or choose strategy ddp"
            )

    def forget(self) -> None:
        """Record that an optimizer step used the gradients, or that they were dropped."""
        self._count, self._reduced = 0, False
        if not self._stage:
            self._failed = False  # at stage 0, gradients are ordinary `.grad` tensors, which zero_grad drops

    def _begin_any(self) -> None:
        if not runs_own_backward(self._engine):
            if not self._stage:
                raise GradientError(
                    "a backward went through a module that wasn't its own runtime.backward, and deepspeed's stage 0 "
                    "doesn't reduce its gradients then: call runtime.backward(loss) in the place of loss.backward() "
                    "and torch.autograd.grad, for losses of one module each, or choose strategy ddp"
                )
            self._before_direct()
            self.begin()
        self._prologue()

    def _begin_at_output(self, gradient: torch.Tensor) -> Any:
        # The engine calls its prologue only for the first backward of a graph; this one runs at every output.
        if self._stage and not runs_own_backward(self._engine):
            self.begin()
        return self._each_output(gradient)

    def _refuse_failed(self) -> None:
        if self._failed:
            raise GradientError(
                "a part of the gradients of a backward that wasn't finished is there, since it raised or was that of "
                f"another module's loss: {_WHAT_TO_DO[bool(self._stage)]}, or choose strategy ddp"
            )


def refuse_gradients(module: nn.Module, engine: Any = None) -> list[Any]:
    """Register hooks that raise at a backward through a module set up without an optimizer; return their handles.

    The engine averages only the gradients of parameters that it trains. This module's would differ between ranks.

    Args:
        module: the user's module.
        engine: at stage 3, the engine that gathers the module's parameters. Its own error would be less helpful.
    """

    def refuse(*_: torch.Tensor) -> NoReturn:
        raise GradientError(
            f"a backward went through the parameters of a {type(module).__name__} that setup() got no optimizer "
            "with, and deepspeed trains with the one that it gets there: pass it to setup() with the module, freeze "
            "the parameters by requires_grad_(False), or choose strategy ddp"
        )

    if engine is not None:
        replace(engine, PROLOGUE, refuse)
    with as_plain_tensors():
        return [p.register_hook(refuse) for p in module.parameters() if p.requires_grad]  # type: ignore[no-untyped-call]  # torch has none


class WindowGradients:
    """Checks that no one changes the gradients that micro-batches within no_sync leave on parameters (stages 0, 1).

    Args:
        named: parameters by their names.
    """

    def __init__(self, named: Iterable[tuple[str, Any]]) -> None:
        self._named = list(named)
        self._versions: dict[str, tuple[Any, int]] = {}

    def note(self) -> None:
        """Record the gradients after a backward within no_sync."""
        self._versions = {
            name: (ref(p.grad), tensor_version(p.grad))
            for name, p in self._named
            if p.grad is not None and not isinstance(p.grad, HeldGradient)
        }

    def forget(self) -> None:
        """Drop the record: gradients were reduced or dropped."""
        self._versions.clear()

    def check(self) -> None:
        """Refuse gradients that changed since `note`. Call it before the next backward of an accumulation window.

        Raises:
            GradientError: a gradient was changed or assigned, so that it is no longer a sum over micro-batches; or it
                is a view of a larger tensor, which the engine wouldn't follow.
        """
        for name, p in self._named:
            noted, version = self._versions.get(name, (None, 0))
            gradient = p.grad
            if gradient is None or isinstance(gradient, HeldGradient):
                continue
            if view_base(gradient) is not None:
                raise GradientError(
                    f"{name!r}.grad was given a part of a larger tensor, which deepspeed would not follow: give it a "
                    "copy, as by .grad = part.clone(), or choose strategy ddp"
                )
            if noted is None:
                continue
            if (noted() is not gradient or tensor_version(gradient) != version) and gradient.any():
                raise GradientError(
                    f"the gradient of {name!r} was changed within runtime.no_sync(), before it was averaged over the "
                    "ranks: scale the loss instead, clip by clipping=Clipping(max_norm=...) in setup, or choose ddp"
                )


def dropped_within_window() -> GradientError:
    """Return the error for dropping gradients that the engine has already accumulated."""
    return GradientError(
        "gradients were dropped after a backward within runtime.no_sync(), and deepspeed's stages 1 to 3 have "
        "accumulated them already: leave the micro-batch out before its backward, or choose strategy ddp or fsdp"
    )


class EngineGradient(HeldGradient):
    """Placeholder in `p.grad` for a gradient that the engine holds."""

    sentence = (
        "deepspeed's stages 1 to 3 hold the gradients after a backward, in shards, and p.grad has no values that "
        "could be read or changed: clip by runtime.clip(optimizer, ...) with clipping=Clipping(max_norm=...) in "
        "setup, or choose strategy ddp"
    )


class HeldGradients:
    """Puts placeholders into `p.grad` between a backward and the optimizer step.

    Args:
        parameters: those that the engine trains.
        names: id of a parameter → its name.
        put: function that sets the gradient of a parameter.
        refuse: called before a backward adds to a placeholder; None registers no hooks.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        names: Mapping[int, str],
        put: Callable[[Any, torch.Tensor], None],
        refuse: Callable[[], None] | None,
    ) -> None:
        self._parameters, self._names, self._put = list(parameters), names, put
        self._there = False
        self._placed: list[Any] = []
        self._handles: list[Any] = []
        if refuse is not None:
            # The engine notices a second backward of the same graph too late.
            def before_accumulation(_: torch.Tensor) -> None:
                if self._there:
                    refuse()

            with as_plain_tensors():
                self._handles = [
                    p.register_hook(before_accumulation) for p in self._parameters if p.requires_grad
                ]

    def place(self) -> None:
        """Put a placeholder on each parameter whose gradient the engine has taken."""
        self._there, self._placed = True, []
        with as_plain_tensors():  # otherwise reading the shape of a placeholder raises, too
            for parameter in self._parameters:
                if parameter.grad is None:
                    shape = getattr(parameter, "ds_shape", parameter.shape)
                    self._put(parameter, EngineGradient.like(parameter, shape))
                    self._placed.append(parameter)

    def was_dropped(self) -> bool:
        """Whether a parameter has lost its placeholder, as by `zero_grad`."""
        return self._there and any(p.grad is None for p in self._placed)

    def remove(self) -> None:
        """Remove the placeholders: the engine and autograd would take them for gradients."""
        if not self._there:
            return
        self._there = False
        for parameter in self._parameters:
            if isinstance(parameter.grad, HeldGradient):
                parameter.grad = None

    def release(self) -> None:
        """Remove the placeholders and the hooks."""
        self.remove()
        for handle in self._handles:
            handle.remove()

    def check_assigned(self) -> None:
        """Refuse gradients that the user's code has assigned. Call it after `remove`.

        Raises:
            GradientError: names the first parameter with an assigned gradient.
        """
        for parameter in self._parameters:
            if parameter.grad is not None:
                raise GradientError(
                    f"the gradient of {self._names.get(id(parameter), 'a parameter')!r} was assigned by your code, "
                    "and deepspeed steps nothing but the gradients of its own backward: compute it by "
                    "runtime.backward(loss), or choose strategy ddp"
                )
