"""`StepWatch`: what isn't finite in a step: first a module's output, then gradients."""

from __future__ import annotations

import pdb
from typing import Any

import torch
from torch import nn

from stratagem_capsule.base import first_non_finite
from stratagem_capsule.report import RankReport


class StepWatch:
    """Looks at values of a step as they come about, on one rank.

    Args:
        module: the user's.
        report: takes what is found.
        stops: whether the debugger opens at the first module whose output isn't finite.
    """

    def __init__(self, module: nn.Module, report: RankReport, *, stops: bool) -> None:
        self._module, self._report, self._stops = module, report, stops
        report.non_finite_at_start = first_non_finite(module.named_parameters())
        self._handles = [
            each.register_forward_hook(self._looking_at(name), always_call=False)
            for name, each in module.named_modules()
            if name
        ]

    def _looking_at(self, name: str) -> Any:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            if self._report.non_finite_module is not None or _is_finite(output):
                return
            self._report.non_finite_module = f"{name} ({type(module).__name__})"
            self._report.its_input_is_finite = _is_finite(args)
            if self._stops:
                print(f"the output of module {name!r} isn't finite: `args`, `output` and `module` are here")
                pdb.set_trace()

        return look

    def look_at_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the norm of an optimizer's gradients, and those that aren't finite. Collective if they are sharded."""
        names = {parameter: name for name, parameter in self._module.named_parameters()}
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        named = [(names.get(p, "?"), p.grad) for p in parameters if p.grad is not None]
        bad = [name for name, gradient in named if first_non_finite([(name, gradient)])]
        self._report.non_finite_gradients += bad
        gradients = [gradient.detach() for _, gradient in named]
        if gradients:
            norm = nn.utils.get_total_norm(gradients)
            self._report.gradient_norms.append(float(getattr(norm, "full_tensor", lambda: norm)()))

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()


def _is_finite(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        local = getattr(value, "to_local", lambda: value)().detach()
        return not local.is_floating_point() or bool(torch.isfinite(local).all())
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_is_finite, value))
