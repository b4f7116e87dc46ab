"""Strategies that are right for one module, and take a second one for the first."""

from __future__ import annotations

from typing import Any

from averaging import AveragedPrepared, Averaging
from wrong_strategies import caught_by


@caught_by("own_loop", "the loss of the critic in step 1")
class AveragesTheFirst(AveragedPrepared):
    def averaged(self) -> Any:
        firsts = self.request.config.strategy.__dict__.setdefault("_firsts", [])
        if not firsts:
            firsts.append(self.original_module)
        return firsts[0].parameters()


class KeepsNoOptimizersPrepared(AveragedPrepared):
    """Begins anew with each optimizer where modules have names."""

    def load(self, reader: Any, state: dict[str, Any], *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only or "modules" in reader.state["prepared"])


class KeepsNoOptimizers(Averaging):
    prepared = KeepsNoOptimizersPrepared


class StepsPastTheModulePrepared(AveragedPrepared):
    """Calls the user's module where it is given another to call."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.original_module(*(each for each in args if not isinstance(each, str)), **kwargs)


class StepsPastTheModule(Averaging):
    prepared = StepsPastTheModulePrepared
