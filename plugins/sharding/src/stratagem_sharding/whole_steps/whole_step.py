"""`WholeStep`: what the two ways to step whole tensors have in common."""

from __future__ import annotations

from typing import ClassVar

from torch.optim import Optimizer

from stratagem.errors import ConfigError
from stratagem_sharding.local_step import LocalStep
from stratagem_sharding.whole_steps.seen_parameters import SeenParameters


class WholeStep(LocalStep):
    """Lets an optimizer's `step` see whole tensors; all other code sees DTensors.

    Args:
        optimizer: its groups and its state stay the same objects before and after each step.
        strategy: the strategy's name, for messages.

    Raises:
        ConfigError: the optimizer keeps parameters outside its groups.
    """

    needs: ClassVar[str]
    """What the optimizer needs, for messages."""

    def __init__(self, optimizer: Optimizer, strategy: str) -> None:
        super().__init__(optimizer)
        if not self._is_active:
            raise ConfigError(
                f"{type(optimizer).__name__} needs {self.needs}, which {strategy} brings to those in param_groups, "
                "and keeps parameters elsewhere, too: keep them there alone, or choose ddp"
            )
        self._seen = SeenParameters()

    def _restore(self) -> None:
        """Put the user's parameters back into the optimizer's groups, and key its states by them."""
        optimizer = self._optimizer
        stepped, optimizer.state = optimizer.state, self._state
        for key, state in stepped.items():
            self._state[self._owner.get(key, key)] = state
        for group, whole in zip(optimizer.param_groups, self._whole):
            group["params"][:] = whole
        self._whole, self._state, self._owner = [], None, {}
