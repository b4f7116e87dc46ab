"""`GradientReducer`: ShardedDDP with one order of gradients on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

import torch
from stratagem_sharding.held_gradient import ZeroableGradient
from torch import nn

from stratagem import ConfigError
from stratagem.errors import GradientError
from stratagem.sdk.torch_private import tensor_version
from stratagem_fairscale.fairscale_private import HookedShardedDDP
from stratagem_fairscale.missing import MissingGradients

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from stratagem import Collectives
    from stratagem_fairscale.optimizer import ShardedOptimizer


class OwnersGradient(ZeroableGradient):
    """Placeholder for an averaged gradient that another rank has."""

    sentence = (
        "under fairscale_sharded each rank has the averaged gradients of the parameters that it steps, and p.grad of "
        "any other has no values that could be read or changed: clip by runtime.clip(optimizer, ...), scale the loss "
        "instead of gradients, or choose ddp_sharded"
    )


class GradientReducer:
    """Averages each gradient on the rank that steps its parameter, while backward computes others.

    FairScale sends gradients in the order in which a rank's backward computes them, and skips parameters that the
    backward doesn't reach. Ranks whose backwards differ then add gradients of different parameters, or hang. Here
    all ranks send the gradients of all trained parameters, in one order. A parameter that no rank's backward reached
    gets no gradient, as in one process. Construction is collective.

    Args:
        module: on its device, equal on all ranks.
        optimizers: of the parameters whose gradients are averaged.
        collectives: of all ranks.
        device: of the module.
        names: id of each parameter → its name.
        reduce_buffer_size: elements of small gradients that are sent together; 0 sends each separately.
        reduce_fp16: send them as float16.
        checks: whether to track which gradients are averages, for `complete` and `average`; True in your own loop.

    Attributes:
        engine: the module to call for a forward.
        is_on: whether the next backward is the last one before a step, so that gradients are averaged.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[ShardedOptimizer],
        collectives: Collectives,
        device: torch.device,
        names: Mapping[int, str],
        reduce_buffer_size: int,
        reduce_fp16: bool,
        checks: bool = False,
    ) -> None:
        self.is_on, self._checks = True, checks
        self._optimizers, self._names, self._device = optimizers, names, device
        self._missing = MissingGradients(collectives)
        self._window = 0
        # Keyed by ids of parameters. First those that required a gradient in a forward of this window.
        self._forwarded: set[int] = set()
        self._expected: list[torch.Tensor] | None = None
        self._sent = 0
        self._ready: set[int] = set()
        self._averaged: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._aside: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # For `complete`, by ids of parameters: each averaged gradient and its version at that time.
        self._complete: dict[int, tuple[torch.Tensor, int]] = {}
        # Versions of gradients that backwards within no_sync have left.
        self._local: dict[int, tuple[ReferenceType[torch.Tensor], int]] = {}
        self._has_leftovers = self._was_abandoned = False
        # Parameters that other ranks step; those ranks have the averages.
        self._elsewhere: dict[int, torch.Tensor] = {}
        self._holds = False
        self.engine = HookedShardedDDP(module, list(optimizers), self._note, reduce_buffer_size, reduce_fp16)
        # By parameters. Tensor hooks run before autograd accumulates into the gradient.
        self._guards: dict[torch.Tensor, RemovableHandle] = {}
        self._arrange()

    def hold(self) -> None:
        """Put placeholders into `p.grad` where another rank has the average. The other methods remove them."""
        for parameter in self._elsewhere.values():
            if parameter.grad is None:
                parameter.grad = OwnersGradient.like(parameter)
        self._holds = True

    def let_go(self) -> None:
        """Remove the placeholders of `hold`, before autograd, the optimizer or FairScale read gradients."""
        if not self._holds:
            return
        self._holds = False
        for key, parameter in list(self._elsewhere.items()):
            if isinstance(parameter.grad, OwnersGradient):
                parameter.grad = None
            elif parameter.grad is None:  # the user's code dropped it
                del self._elsewhere[key]

    def before_forward(self) -> None:
        """Include groups added to optimizers, and record trained parameters. Collective if groups were added."""
        self.let_go()
        if self._expected is not None:
            self.finish()  # of a backward that we weren't asked for
        self.set_aside()
        if sum(len(each.param_groups) for each in self._optimizers) != self._groups:
            for each in self._optimizers:
                each.include_added_groups()
            self.engine.include_added_groups()
            self._arrange()
        self._forwarded.update(id(p) for p in self._order if p.requires_grad)

    def settle(self) -> None:
        """Average gradients of backwards that bypassed the strategy, and restore averages set aside. Collective."""
        self.let_go()
        if self._expected is not None:
            self.finish()
        self._add_aside()

    def set_aside(self) -> None:
        """Move averages out of `p.grad`, so that a further backward doesn't add unaveraged gradients to them."""
        self.let_go()
        for key, (parameter, averaged) in self._averaged.items():
            if parameter.grad is averaged:
                # The next reduction overwrites gradients in buckets.
                kept = averaged.clone() if self.engine.is_in_bucket(parameter) else averaged
                self._aside[key] = parameter, kept
                parameter.grad = None
        self._averaged.clear()

    def forget_averages(self) -> None:
        """Forget which gradients are averages, after they were stepped or dropped."""
        self._averaged.clear()

    def note_leftovers(self) -> None:
        """Record that backwards leave unaveraged gradients (no_sync). Called on all ranks."""
        self._has_leftovers = True

    def complete(self, parameters: Sequence[torch.Tensor], optimizer: str) -> None:
        """Average the gradients that backwards within no_sync have left, before a step. Collective.

        Args:
            parameters: of one optimizer.
            optimizer: the name of its class.

        Raises:
            GradientError: the user's code assigned or changed a gradient, or its parameter was added after setup.
        """
        self.let_go()
        if self._expected is not None:
            self.finish()  # of a backward that we weren't asked for
        self._check_known(parameters, optimizer)
        self._check(self.engine.candidates if self._has_leftovers else parameters, optimizer)
        if self._has_leftovers:
            self.set_aside()
            self.finish()
        self._add_aside()

    def average(self, parameters: Sequence[torch.Tensor], optimizer: str) -> None:
        """Average the gradients of `parameters`, whatever computed them, unless already averaged. Collective.

        Raises:
            GradientError: another optimizer's gradient was assigned, or an average was changed.
        """
        self.let_go()
        if self._expected is not None:
            self.finish()
        self._check_known(parameters, optimizer)
        given = {id(parameter) for parameter in parameters}
        self._check([p for p in self.engine.candidates if id(p) not in given], optimizer)
        for parameter in parameters:
            if id(parameter) in self._averaged and parameter.grad is not None:
                self._check([parameter], optimizer)
        self.set_aside()
        self.finish()

    def note_complete(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record that the current gradients of `parameters` are averages over the ranks."""
        if self._checks:
            for parameter in parameters:
                if parameter.grad is not None:
                    self._complete[id(parameter)] = parameter.grad, tensor_version(parameter.grad)

    def _check(self, parameters: Iterable[torch.Tensor], optimizer: str) -> None:
        """Refuse gradients that are neither averages nor results of a backward."""
        for parameter in parameters:
            gradient, key = parameter.grad, id(parameter)
            if gradient is None:
                continue
            version = tensor_version(gradient)
            averaged, averaged_version = self._complete.get(key, (None, -1))
            if gradient is averaged:
                # Gradients in one bucket share a version. Zeros, as from zero_grad, don't count as a change.
                if version != averaged_version and gradient.any():
                    raise GradientError(
                        f"gradients that {optimizer} steps were changed by your code after they had been averaged, "
                        "and under fairscale_sharded each rank holds only its own parameters' averages: clip by "
                        "runtime.clip(optimizer, ...), scale the loss instead of gradients, or choose ddp_sharded"
                    )
            elif self._is_left(key, gradient, version):
                continue
            elif gradient.any():
                name = self._names.get(key, "a parameter")
                if key in self._local:
                    raise GradientError(
                        f"the gradient of {name!r} was changed before it was averaged over the ranks, as by clipping "
                        "a gradient from no_sync(): clip by runtime.clip(optimizer, ...)"
                    )
                raise GradientError(
                    f"the gradient of {name!r} was assigned by your code, as what torch.autograd.grad returns is, "
                    "and isn't averaged over the ranks: if you want its average, call "
                    "runtime.average_gradients(optimizer) before a backward or the step, or else choose ddp_sharded"
                )

    def _is_left(self, key: int, gradient: torch.Tensor, version: int) -> bool:
        """Whether a gradient is the unchanged result of backwards within no_sync."""
        left = self._local.get(key)
        return left is not None and left[0]() is gradient and left[1] == version

    def _check_known(self, parameters: Iterable[torch.Tensor], optimizer: str) -> None:
        known = {id(parameter) for parameter in self.engine.candidates}
        for parameter in parameters:
            if id(parameter) not in known and parameter.grad is not None:
                raise GradientError(
                    f"{optimizer} steps a parameter of shape {tuple(parameter.shape)} that was added after setup() "
                    "and has a gradient that isn't averaged over the ranks: call the module that setup() returned "
                    "after add_param_group, or add layers before setup()"
                )

    def abandon(self) -> None:
        """Handle a backward that raised. Not collective: `finish` waits for the gradients that it has sent."""
        if self._checks and self._expected is not None:
            for parameter in self._expected[: self._sent]:
                if parameter.grad is not None:  # a zero_grad would change what is being sent
                    parameter.grad = parameter.grad.clone()
            self._was_abandoned = True

    def _dropped(self, sent: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sent parameters whose gradients the user's code has dropped since, as after an exception.

        Raises:
            GradientError: a backward raised, and its gradients weren't dropped.
        """
        dropped = []
        for parameter in sent:
            if parameter.grad is not None and self._was_abandoned and parameter.grad.any():
                raise GradientError(
                    f"the gradient of {self._names.get(id(parameter))!r} is what a backward that raised has left, "
                    "and isn't averaged over the ranks: call optimizer.zero_grad() after the exception"
                )
            if parameter.grad is None or self._was_abandoned:
                dropped.append(parameter)
        for parameter in dropped:
            parameter.grad = torch.zeros_like(parameter)  # FairScale asserts that there is one
        return dropped

    def drop(self, parameters: Iterable[torch.Tensor]) -> None:
        """Forget the gradients of `parameters`, which the user's code drops."""
        for parameter in parameters:
            self._aside.pop(id(parameter), None)
            self._local.pop(id(parameter), None)
            self._elsewhere.pop(id(parameter), None)

    def finish(self) -> None:
        """Wait until this rank has the averages for its own parameters; drop other gradients. Collective."""
        expected = self._begin()
        dropped = self._dropped(expected[: self._sent]) if self._checks else ()
        lacking = {n for n in range(self._sent, len(expected)) if expected[n].grad is None}
        if lacking:
            self._missing.publish(self._window, lacking)
        while self._sent < len(expected):
            self._send_next(expected)
        self.engine.finish()
        if lacking and self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)  # until the others' parts have come
        if self._checks:
            elsewhere = (p for n, p in enumerate(expected) if n not in lacking and id(p) not in self._own)
            self._elsewhere.update((id(p), p) for p in elsewhere)
        nowhere = self._missing.nowhere(self._window, {n for n in lacking if id(expected[n]) in self._own})
        for number, parameter in enumerate(expected):
            if id(parameter) not in self._own or number in nowhere:
                parameter.grad = None
        for parameter in dropped:
            parameter.grad = None
            self._elsewhere.pop(id(parameter), None)
        self._add_aside()
        self._averaged.update((id(p), (p, p.grad)) for p in expected if p.grad is not None)
        self.note_complete(expected)
        self._local.clear()
        self._has_leftovers = self._was_abandoned = False
        self._window += 1
        self._expected, self._sent = None, 0
        self._ready.clear()
        self._forwarded.clear()

    def release(self) -> None:
        """Remove hooks and placeholders, and drop references to the module."""
        self.let_go()
        for handle in (*self.engine.hooks, *self._guards.values()):
            handle.remove()
        self._guards.clear()
        del self.engine, self._optimizers, self._order, self._own, self._missing

    # --------------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """Order parameters as backward is likely to reach them: last ones first."""
        places = {id(p): n for n, p in enumerate(self.engine.module.parameters())}
        candidates = self.engine.candidates
        self._groups = sum(len(each.param_groups) for each in self._optimizers)
        self._own = {id(parameter) for each in self._optimizers for parameter in each.owned}
        self._order = sorted(candidates, key=lambda p: -places.get(id(p), -1))
        for parameter in candidates if self._checks else ():
            if parameter.requires_grad and parameter not in self._guards:
                guard = partial(self._before_gradient, parameter)
                self._guards[parameter] = parameter.register_hook(guard)  # type: ignore[no-untyped-call]  # torch has none

    def _begin(self) -> list[torch.Tensor]:
        """Begin a reduction if none has begun; return the parameters in the order in which they are sent."""
        if self._expected is None:
            self._expected = [p for p in self._order if p.requires_grad or id(p) in self._forwarded]
            if any(id(p) not in self.engine.senders for p in self._expected):
                self.engine.refresh_trainable()  # unfrozen within this step
            self.engine.begin()
        return self._expected

    def _before_gradient(self, parameter: torch.Tensor, _: torch.Tensor) -> None:
        """Refuse to add to a gradient that the user's code assigned or changed: the sum can't be averaged."""
        if isinstance(parameter.grad, OwnersGradient):
            parameter.grad = None
        if id(parameter) not in self._ready:
            self._check([parameter], "the optimizer")

    def _note(self, parameter: torch.Tensor, *_: object) -> None:
        left = self._local.get(id(parameter))
        if left is not None and parameter.grad is not None and tensor_version(parameter.grad) > left[1] + 1:
            raise GradientError(
                f"the gradient of {self._names.get(id(parameter), 'a parameter')!r} was changed before it was "
                "averaged over the ranks, as by clipping a gradient from no_sync(): clip by "
                "runtime.clip(optimizer, ...)"
            )
        if not self.is_on or parameter.grad is None:
            if self._checks and parameter.grad is not None:
                self._local[id(parameter)] = ref(parameter.grad), tensor_version(parameter.grad)
            return
        key = id(parameter)
        if key in self._ready:
            raise ConfigError(
                f"the gradient of {self._names.get(id(parameter))!r} was computed again before its first value was "
                "averaged: call Runtime.backward, put all backwards of a step but the last one into Runtime.no_sync, "
                "and give use_reentrant=False to torch.utils.checkpoint.checkpoint"
            )
        expected = self._begin()
        self._ready.add(key)
        while self._sent < len(expected) and id(expected[self._sent]) in self._ready:
            self._send_next(expected)

    def _send_next(self, expected: list[torch.Tensor]) -> None:
        self.engine.send(expected[self._sent])
        self._sent += 1

    def _add_aside(self) -> None:
        for key, (parameter, averaged) in self._aside.items():
            parameter.grad = averaged if parameter.grad is None else averaged.add_(parameter.grad)
            self._averaged[key] = parameter, averaged
        self.note_complete([parameter for parameter, _ in self._aside.values()])
        self._aside.clear()
