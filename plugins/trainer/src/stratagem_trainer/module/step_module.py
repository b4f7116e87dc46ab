"""`StepModule`: one `forward` for all steps of a module, so that a strategy's wrapper covers each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

from stratagem_sharding.part_of_batch import refuse_in_chunk
from torch import nn

from stratagem.sdk.loops import loss_of
from stratagem_trainer.torch_private import child

STEP_NAMES = ("training_step", "validation_step", "test_step", "predict_step")


class StepModule(nn.Module):
    """A module whose forward calls a step of the user's module by name.

    DistributedDataParallel and similar wrappers act in the forward of the wrapped module. A step may call any methods
    of the user's module, and need not call its forward. A wrapper around this module covers all of them.

    Args:
        module: the user's module.
        before_backward: called with the loss of each training step that returns one.
    """

    def __init__(self, module: nn.Module, before_backward: Sequence[Callable[[Any], Any]] = ()) -> None:
        super().__init__()
        self.module = module
        self.before_backward = tuple(before_backward)

    def forward(self, step: str, *args: Any) -> Any:
        output = getattr(child(self, "module"), step)(*args)
        if self.before_backward and step == "training_step":
            refuse_in_chunk("on_before_backward")
            loss = loss_of(output)
            if loss is not None:
                for method in self.before_backward:
                    method(loss)
        return output


class FewerArguments(StepModule):
    """A `StepModule` for steps that may take only the batch, without its index."""

    def __init__(
        self, module: nn.Module, before_backward: Sequence[Callable[[Any], Any]], num_args: Mapping[str, int]
    ) -> None:
        super().__init__(module, before_backward)
        self.num_args = dict(num_args)

    def forward(self, step: str, *args: Any) -> Any:
        return super().forward(step, *args[: self.num_args.get(step)])


def step_module(module: nn.Module, before_backward: Sequence[Callable[[Any], Any]] = ()) -> StepModule:
    """Return a module that calls the steps, each with as many of (batch, batch_idx, …) as it takes."""
    taken = {step: num_arguments(getattr(module, step)) for step in STEP_NAMES}
    fewer = {step: count for step, count in taken.items() if count is not None and count < 2}
    return FewerArguments(module, before_backward, fewer) if fewer else StepModule(module, before_backward)


def num_arguments(step: Callable[..., Any]) -> int | None:
    """Return the maximum number of positional arguments of a step; None if there is no limit."""
    parameters = signature(step).parameters.values()
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in positional for parameter in parameters)


class EndedSteps(nn.Module):
    """Steps of a module that defines `*_step_end` for some of them.

    A strategy that splits batches calls `steps` for each chunk, and calls the step's end itself with all outputs.
    Other strategies call this forward, for which the batch is the only chunk.
    """

    def __init__(self, steps: StepModule, ends: Mapping[str, Callable[[list[Any]], Any]]) -> None:
        super().__init__()
        self.steps = steps
        self.ends = ends

    def forward(self, step: str, *args: Any) -> Any:
        output = self.steps(step, *args)
        end = self.ends.get(step)
        return output if end is None else end([output])
