"""One callable for all steps of a module, so that a strategy wraps every forward."""

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
    """Its forward calls a named step of the user's module.

    DistributedDataParallel and its like act in the forward of the module that they wrap; a user's
    step may call any method of its module, or none of its forward. Wrapping this one covers them all.

    Args:
        module: the user's.
        before_backward: called with the loss of a training step that has one.
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
    """Steps of which some take the batch alone, without its index."""

    def __init__(
        self, module: nn.Module, before_backward: Sequence[Callable[[Any], Any]], num_args: Mapping[str, int]
    ) -> None:
        super().__init__(module, before_backward)
        self.num_args = dict(num_args)

    def forward(self, step: str, *args: Any) -> Any:
        return super().forward(step, *args[: self.num_args.get(step)])


def step_module(module: nn.Module, before_backward: Sequence[Callable[[Any], Any]] = ()) -> StepModule:
    """Return what calls the module's steps, with as many of (batch, batch_idx, …) as each takes."""
    taken = {step: num_arguments(getattr(module, step)) for step in STEP_NAMES}
    fewer = {step: count for step, count in taken.items() if count is not None and count < 2}
    return FewerArguments(module, before_backward, fewer) if fewer else StepModule(module, before_backward)


def num_arguments(step: Callable[..., Any]) -> int | None:
    """How many positional arguments a step takes at most; None where there is no limit."""
    parameters = signature(step).parameters.values()
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in positional for parameter in parameters)


class EndedSteps(nn.Module):
    """Steps of a module that defines a `*_step_end` for some of them.

    A strategy that splits a batch calls `steps` for the parts, and itself the step's end on all outputs;
    under any other, the batch is the only part.
    """

    def __init__(self, steps: StepModule, ends: Mapping[str, Callable[[list[Any]], Any]]) -> None:
        super().__init__()
        self.steps = steps
        self.ends = ends

    def forward(self, step: str, *args: Any) -> Any:
        output = self.steps(step, *args)
        end = self.ends.get(step)
        return output if end is None else end([output])
