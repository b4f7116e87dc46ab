"""Strategies that lose something of what a training does to its own parameters."""

from __future__ import annotations

from typing import Any

import torch
from averaging import AveragedPrepared
from planting import caught_by
from torch import nn


@caught_by("frozen_for_one_loss", "the loss of micro-batch 1 is")
class IgnoresFreezing(AveragedPrepared):
    """Within a step, what a step freezes goes on getting gradients."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        freeze = nn.Parameter.requires_grad_

        def keep(parameter: Any, requires_grad: bool = True) -> Any:
            return parameter

        try:
            nn.Parameter.requires_grad_ = keep  # type: ignore[method-assign]  # the planted fault
            return super().forward(*args, **kwargs)
        finally:
            nn.Parameter.requires_grad_ = freeze  # type: ignore[method-assign]  # the original


@caught_by("frozen_in_mid_run", "the loss of micro-batch")
class AveragesWhatWasTrained(AveragedPrepared):
    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.trained = [p for p in self.original_module.parameters() if p.requires_grad]

    def averaged(self) -> Any:
        return self.trained


@caught_by("frozen_within_a_step", "the loss of micro-batch")
class ForgetsFreezing(AveragedPrepared):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        before = [p.requires_grad for p in self.original_module.parameters()]
        output = super().forward(*args, **kwargs)
        for parameter, requires_grad in zip(self.original_module.parameters(), before):
            parameter.requires_grad_(requires_grad)
        return output


class _RestoresValues(AveragedPrepared):
    """Steps compute with copies, whose changes are thrown away."""

    def concerned(self, parameter: Any) -> bool:
        return True

    def step(self, index: int, closure: Any = None) -> bool:
        with torch.no_grad():
            for parameter, before in self.before:
                parameter.data.copy_(before)
        return super().step(index, closure)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.before = [
            (p, p.detach().clone()) for p in self.original_module.parameters() if self.concerned(p)
        ]
        return super().forward(*args, **kwargs)


@caught_by("changes_in_place", "Clamped()")
class ThrowsChangesAway(_RestoresValues):
    pass


@caught_by("target_network", "the loss of micro-batch")
class KeepsFrozenValues(_RestoresValues):
    def concerned(self, parameter: Any) -> bool:
        return not parameter.requires_grad


@caught_by("parameter_attributes", "have lost the attribute no_decay")
class ClearsAttributes(AveragedPrepared):
    def __init__(self, request: Any) -> None:
        for parameter in request.original_module.parameters():
            vars(parameter).clear()
        super().__init__(request)


@caught_by("parameter_lists", "was used that your code had before setup()")
class ReplacesListedParameters(AveragedPrepared):
    """Only where lists of them are kept, and once the optimizers have been made."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        for module in self.original_module.modules():
            if not any(isinstance(value, list) for value in vars(module).values()):
                continue
            for child in module.children():
                for name, parameter in list(child._parameters.items()):
                    if parameter is not None:
                        child._parameters[name] = nn.Parameter(parameter.detach().clone())


@caught_by("parameter_hooks", "Hooked()")
class DropsHooks(AveragedPrepared):
    def __init__(self, request: Any) -> None:
        for parameter in request.original_module.parameters():
            for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks):
                if hooks:
                    hooks.clear()
        super().__init__(request)
