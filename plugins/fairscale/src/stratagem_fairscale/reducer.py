"""`GradientReducer`: ShardedDDP, whose ranks send gradients in one and the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from stratagem import ConfigError
from stratagem_fairscale.fairscale_private import HookedShardedDDP
from stratagem_fairscale.missing import MissingGradients

if TYPE_CHECKING:
    from stratagem import Collectives
    from stratagem_fairscale.optimizer import ShardedOptimizer


class GradientReducer:
    """Averages each gradient on the rank that steps its parameter, while backward computes others.

    FairScale sends gradients in the order in which a rank's backward comes to them, and nothing of a parameter to
    which it doesn't come: ranks whose backwards differ add gradients of different parameters, or wait for ever. Here
    all ranks send what is trained, in one order, and a parameter that no rank's backward reached keeps no gradient,
    as in one process. Collective to make.

    Args:
        module: on its device, equal on all ranks.
        optimizers: of the parameters that are averaged.
        collectives: of all ranks.
        device: of the module.
        names: id of each parameter → its name.
        reduce_buffer_size: elements of small gradients that are sent together; 0 for each by itself.
        reduce_fp16: send them as float16.

    Attributes:
        engine: what to call for a forward.
        is_on: whether the next gradients are the last before a step, and are averaged.
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
    ) -> None:
        self.is_on = True
        self._optimizers, self._names, self._device = optimizers, names, device
        self._missing = MissingGradients(collectives)
        self._window = 0
        # All by ids of parameters. First what required a gradient in a forward of this window, also if frozen by now.
        self._forwarded: set[int] = set()
        self._expected: list[torch.Tensor] | None = None
        self._sent = 0
        self._ready: set[int] = set()
        self._averaged: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._aside: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.engine = HookedShardedDDP(module, list(optimizers), self._note, reduce_buffer_size, reduce_fp16)
        self._arrange()

    def before_forward(self) -> None:
        """Take up what was added to optimizers, and note what is trained. Collective only where that changed."""
        if self._expected is not None:
            self.finish()  # of a backward that we weren't asked for
        self.set_aside()
        if sum(len(each.param_groups) for each in self._optimizers) != self._groups:
            for each in self._optimizers:
                each.take_up_groups()
            self.engine.take_up_groups()
            self._arrange()
        self._forwarded.update(id(p) for p in self._order if p.requires_grad)

    def settle(self) -> None:
        """Average what a backward has left that we weren't asked for, and put all averages in place. Collective."""
        if self._expected is not None:
            self.finish()
        self._add_aside()

    def set_aside(self) -> None:
        """Keep averages of before, to which a further backward would add gradients that aren't averaged yet."""
        for key, (parameter, averaged) in self._averaged.items():
            if parameter.grad is averaged:
                # What is in a bucket is overwritten by what is sent next.
                kept = averaged.clone() if self.engine.is_in_bucket(parameter) else averaged
                self._aside[key] = parameter, kept
                parameter.grad = None
        self._averaged.clear()

    def forget_averages(self) -> None:
        """Take what gradients there are from now on as not averaged: they have been stepped, or dropped."""
        self._averaged.clear()

    def finish(self) -> None:
        """Wait until this rank has the averages of what it steps; others' gradients are dropped. Collective."""
        expected = self._begin()
        lacking = {n for n in range(self._sent, len(expected)) if expected[n].grad is None}
        if lacking:
            self._missing.tell(self._window, lacking)
        while self._sent < len(expected):
            self._send_next(expected)
        self.engine.finish()
        if lacking and self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)  # until the others' parts have come
        nowhere = self._missing.nowhere(self._window, {n for n in lacking if id(expected[n]) in self._own})
        for number, parameter in enumerate(expected):
            if id(parameter) not in self._own or number in nowhere:
                parameter.grad = None
        self._add_aside()
        self._averaged.update((id(p), (p, p.grad)) for p in expected if p.grad is not None)
        self._window += 1
        self._expected, self._sent = None, 0
        self._ready.clear()
        self._forwarded.clear()

    def release(self) -> None:
        """Let go of the module and its parameters."""
        for handle in self.engine.hooks:
            handle.remove()
        del self.engine, self._optimizers, self._order, self._own, self._missing

    # --------------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """Order parameters as backward is likely to come to them."""
        places = {id(p): n for n, p in enumerate(self.engine.module.parameters())}
        candidates = self.engine.candidates
        self._groups = sum(len(each.param_groups) for each in self._optimizers)
        self._own = {id(parameter) for each in self._optimizers for parameter in each.owned}
        self._order = sorted(candidates, key=lambda p: -places.get(id(p), -1))

    def _begin(self) -> list[torch.Tensor]:
        """Begin to average, where that hasn't begun; return what is sent in which order."""
        if self._expected is None:
            self._expected = [p for p in self._order if p.requires_grad or id(p) in self._forwarded]
            if any(id(p) not in self.engine.senders for p in self._expected):
                self.engine.refresh_trainable()  # unfrozen within this step
            self.engine.begin()
        return self._expected

    def _note(self, parameter: torch.Tensor, *_: object) -> None:
        if not self.is_on or parameter.grad is None:
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
        self._aside.clear()
