"""What the engine was made without, and would leave as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn
from torch.optim import Optimizer

from stratagem import CombinationError


class Frozen:
    """Refuses to continue once something is to be trained that the engine wasn't given at the start.

    Args:
        names: id of a parameter of the module → its name.
        parameters: name → parameter that the optimizer has and the engine was made without.
        optimizers: those that the engine steps, as it has set them up.
        stage: ZeRO's.
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
        """Look for parameters that aren't frozen any more, and for new groups. Called before each backward and step.

        Raises:
            CombinationError: there is one.
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
                # Ending, the engine goes by the groups, too.
                del optimizer.param_groups[count:]
                raise CombinationError(
                    f"add_param_group gave {type(optimizer).__name__} the parameter "
                    f"{self._names.get(id(added[0]), 'without a name')!r} after training had begun, and deepspeed "
                    "decides at the start what it trains: give it its own group in configure_optimizers and "
                    "freeze it in on_train_start, or choose strategy ddp or fsdp"
                )
