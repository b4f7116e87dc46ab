"""Stage 1 in bf16, whose engine reduces all gradients at once and steps all partitions at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from stratagem_sharding.torch_private import post_accumulate_hooks
from torch import nn

from stratagem import CombinationError
from stratagem_deepspeed.deepspeed_private import REDUCE_ALL, UPDATE_HALVES, replace, restore
from stratagem_deepspeed.idle import IdleParameters, used_anywhere


class Bf16Gradients:
    """Keeps parameters that have no gradient on any rank unchanged, and makes all ranks clip by the same norm.

    Args:
        engine: the DeepSpeed engine, whose optimizer is a `BF16_Optimizer`.
        names: id of a parameter → its name.
        device: of the tensors that collectives send.
        accumulate: number of micro-batches per step.

    Attributes:
        paused: see `IdleParameters`.

    Raises:
        CombinationError: a post-accumulate hook of the user's wouldn't see the accumulated gradient.
    """

    def __init__(self, engine: Any, names: Mapping[int, str], device: torch.device, accumulate: int) -> None:
        self._engine, self._zero, self._device = engine, engine.optimizer, device
        zero = self._zero
        self._groups: list[list[nn.Parameter]] = zero.bf16_groups
        if accumulate > 1:
            self._check_hooks(names)
        self._idle = IdleParameters(zero, 1, self._groups, zero.fp32_groups_flat_partition, names)
        self.paused = self._idle.paused
        self._reduce = replace(engine, REDUCE_ALL, self._reduce_used)
        self._update = replace(zero, UPDATE_HALVES, self._restore_and_update)
        self._stepped: list[bool] = []

    def remove(self) -> None:
        """Give the engine its own methods back."""
        restore(self._engine, REDUCE_ALL)
        restore(self._zero, UPDATE_HALVES)

    def remove_engine_gradients(self) -> None:
        """Do nothing: no placeholders are used here."""

    def check_assigned(self) -> None:
        """Do nothing: the engine steps with its own copies of the gradients."""

    def _check_hooks(self, names: Mapping[int, str]) -> None:
        for group in self._groups:
            for parameter in group:
                # One of the hooks is the engine's own.
                if len(post_accumulate_hooks(parameter) or ()) > 1:
                    raise CombinationError(
                        f"parameter {names[id(parameter)]!r} has a post-accumulate hook, and at stage 1 in bf16 "
                        "deepspeed accumulates gradients where the hook doesn't see them: use register_hook, set "
                        "accumulate_grad_batches=1, or choose stage 2, or strategy ddp"
                    )

    def _reduce_used(self, *args: Any, **kwargs: Any) -> None:
        parameters = [p for group in self._groups for p in group]
        has = [there for group in self._zero.fp32_groups_has_gradients for there in group]
        used = used_anywhere(has, self._device)
        self._idle.active = {id(p) for p, there in zip(parameters, used) if there}
        self._reduce(*args, **kwargs)
        # Ranks clip by the norm over these gradients. The engine can't compute a norm of no gradients, so if no
        # parameter has one, all of them count: zeros add nothing to the norm.
        nothing = not self._idle.active
        self._zero.fp32_groups_has_gradients = [
            [nothing or id(p) in self._idle.active for p in group] for group in self._groups
        ]

    def before_step(self) -> None:
        """Copy the values that the step mustn't change.

        Raises:
            CombinationError: see `IdleParameters.check`.
        """
        self._idle.check()
        self._stepped = [self._idle.keep(index) for index in range(len(self._groups))]
        for index, stepped in enumerate(self._stepped):
            if not stepped:
                self._idle.keep_whole(index)

    def _restore_and_update(self) -> None:
        with torch.no_grad():
            for index, stepped in enumerate(self._stepped):
                (self._idle.restore if stepped else self._idle.restore_whole)(index)
        self._stepped = []
        self._update()
