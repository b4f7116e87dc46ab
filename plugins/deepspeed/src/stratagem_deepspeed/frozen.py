"""Refuses to train parameters that the engine was created without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn
from torch.optim import Optimizer

from stratagem import CombinationError


class Frozen:
    """Raises once a parameter is to be trained that the engine didn't get at the start.

    Args:
        names: id of a parameter of the module → its name.
        parameters: name → parameter, for parameters in the optimizer that the engine was created without.
        optimizers: those that the engine steps, as it has set them up.
        stage: the ZeRO stage.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        parameters: Mapping[str, nn.Parameter],
        optimizers: Sequence[Optimizer],
        stage: int,
    ) -> None:
        self._names, self._parameters, self._stage = names, tuple(parameters.items()), stage
        self._groups = [(optimizer, len(optimizer.param_groups)) for optimizer in optimizers]

    def check(self) -> None:
        """Refuse unfrozen parameters and added groups. Called before each backward and step.

        Raises:
            CombinationError: names the first one.
        """
        for name, parameter in self._parameters:
            if parameter.requires_grad:
                raise CombinationError(
                    f"parameter {name!r} required no gradient when training began and requires one now, and "
                    f"deepspeed's stage {self._stage} decides at the start what it trains: freeze it in "
                    "on_train_start instead, in its own group in configure_optimizers, or choose strategy ddp "
                    "or fsdp"
                )
        for optimizer, count in self._groups:
            added = [parameter for group in optimizer.param_groups[count:] for parameter in group["params"]]
            if added:
                # The engine goes through the groups when it is destroyed, too.
                del optimizer.param_groups[count:]
                raise CombinationError(
                    f"add_param_group gave {type(optimizer).__name__} the parameter "
                    f"{self._names.get(id(added[0]), 'without a name')!r} after training had begun, and deepspeed "
                    "decides at the start what it trains: give it its own group in configure_optimizers and "
                    "freeze it in on_train_start, or choose strategy ddp or fsdp"
                )
