"""Two right strategies that lose something, and ones that do one thing wrong each, which no parity shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from averaging import AveragedPrepared, Averaging
from planting import FAULTS, Fault, strategy_of
from torch import Tensor

from stratagem import Prepared, hookimpl


class LocalPrepared(AveragedPrepared):
    """Replicas step by themselves; their parameters are averaged every `period` optimizer steps."""

    period = 3

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.steps, self.own = 0, f"local/{request.collectives.rank}/"

    def average(self) -> None:
        pass  # each steps with its own gradients

    def step(self, index: int, closure: Any = None) -> bool:
        applied = super().step(index, closure)
        self.steps += 1
        if self.steps % self.period == 0:
            self.average_weights([parameter.data for parameter in self.original_module.parameters()])
        return applied

    def average_weights(self, tensors: Any) -> None:
        for tensor in tensors:
            dist.all_reduce(tensor.div_(self.world_size))

    def replicas(self) -> Iterator[Any]:
        return iter(())

    @contextmanager
    def evaluating(self) -> Any:
        own = [parameter.detach().clone() for parameter in self.original_module.parameters()]
        self.average_weights([parameter.data for parameter in self.original_module.parameters()])
        with super().evaluating():
            yield
        for parameter, value in zip(self.original_module.parameters(), own):
            parameter.data.copy_(value)

    def restore_module(self) -> None:
        super().restore_module()
        self.average_weights([parameter.data for parameter in self.original_module.parameters()])

    def model_tensors(self) -> dict[str, Tensor]:
        tensors = super().model_tensors()
        if not self.steps:
            return tensors  # as `load` needs them: what a checkpoint fills
        trained = {f"model/{name}" for name, _ in self.original_module.named_parameters()}
        copies = {name: tensors[name].detach().clone() for name in tensors if name in trained}
        self.average_weights(copies.values())
        return {**tensors, **copies}

    def own_tensors(self) -> dict[str, Tensor]:
        tensors = {**Prepared.model_tensors(self), **super().optimizer_tensors()}
        return {f"{self.own}{name}": value for name, value in tensors.items()}

    def optimizer_tensors(self) -> dict[str, Tensor]:
        return {**super().optimizer_tensors(), **self.own_tensors()}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "local": {"steps": self.steps}}

    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        self.steps = 0
        super().load(reader, state, model_only=model_only)
        if not model_only:
            self.steps = state["local"]["steps"]
            reader.read(self.own_tensors())


class Local(Averaging):
    """Local SGD."""

    prepared: type[AveragedPrepared] = LocalPrepared

    def __init__(self, period: int = 3) -> None:
        super().__init__()
        self.period = period

    @hookimpl
    def setup(self, request: Any) -> Any:
        prepared: Any = self.prepared(request)
        prepared.period = self.period
        return prepared


class RoundingPrepared(AveragedPrepared):
    """Sends gradients in 16 bits, and what was rounded off with the next."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.own = f"residual/{request.collectives.rank}/"
        self.residuals = {name: torch.zeros_like(p) for name, p in self.original_module.named_parameters()}

    def average(self) -> None:
        for name, parameter in self.original_module.named_parameters():
            if parameter.grad is not None:
                whole = parameter.grad + self.residuals[name]
                parameter.grad = whole.bfloat16().float()
                self.residuals[name] = self.kept(name, whole - parameter.grad)
        super().average()

    def kept(self, name: str, residual: Tensor) -> Tensor:
        return residual

    def own_tensors(self) -> dict[str, Tensor]:
        return {f"{self.own}{name}": value for name, value in self.residuals.items()}

    def optimizer_tensors(self) -> dict[str, Tensor]:
        return {**super().optimizer_tensors(), **self.own_tensors()}

    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        if not model_only:
            reader.read(self.own_tensors())


class Rounding(Averaging):
    """A compressor with error feedback."""

    prepared = RoundingPrepared


def caught_by(check: str, words: str) -> Any:
    """Plant a fault in one of the two."""

    def register(cls: Any) -> Any:
        strategy = strategy_of(cls, Local if issubclass(cls, LocalPrepared) else Rounding)
        feeds_back = {"feeds_errors_back": True}
        FAULTS.append(Fault("lossy", cls.__name__, strategy, check, words, subject=feeds_back))
        return cls

    return register


# What rounding leaves -----------------------------------------------------------------------------------


@caught_by("error_feedback", "weren't applied")
class ForgetsErrors(RoundingPrepared):
    def kept(self, name: str, residual: Tensor) -> Tensor:
        return torch.zeros_like(residual)


@caught_by("error_feedback", "weren't applied")
class SubtractsErrors(RoundingPrepared):
    def kept(self, name: str, residual: Tensor) -> Tensor:
        return -residual


@caught_by("error_feedback", "weren't applied")
class HalvesErrors(RoundingPrepared):
    def kept(self, name: str, residual: Tensor) -> Tensor:
        return residual / 2


@caught_by("error_feedback", "weren't applied")
class KeepsErrorsInHalves(RoundingPrepared):
    def kept(self, name: str, residual: Tensor) -> Tensor:
        return residual.bfloat16().float()


@caught_by("error_feedback", "weren't applied")
class GivesErrorsToAnother(RoundingPrepared):
    def kept(self, name: str, residual: Tensor) -> Tensor:
        if name.endswith("bias"):
            return self.residuals[name.replace("bias", "weight")][:, 0].clone()
        return residual


@caught_by("weights_alone", "with weights alone")
class KeepsErrorsOfOtherRuns(RoundingPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        reader.read(self.own_tensors())


# Continuing ---------------------------------------------------------------------------------------------


@caught_by("save_and_load", "continued from micro-batch")
class LosesResiduals(RoundingPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        self.residuals = {name: torch.zeros_like(value) for name, value in self.residuals.items()}


@caught_by("save_and_load", "continued from micro-batch")
class TakesResidualsOfTheFirst(RoundingPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        for value in self.residuals.values():
            dist.broadcast(value, 0)


@caught_by("save_and_load", "continued from micro-batch")
class RestartsItsSteps(LocalPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        self.steps = 0


@caught_by("save_and_load", "continued from micro-batch")
class AveragesOneStepLate(LocalPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        self.steps -= 1


@caught_by("save_and_load", "continued from micro-batch")
class GoesOnFromTheAverage(LocalPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        AveragedPrepared.load(self, reader, state, model_only=model_only)
        self.steps = state.get("local", {}).get("steps", 0)


@caught_by("save_and_load", "continued from micro-batch")
class TakesMomentaOfTheFirst(LocalPrepared):
    def load(self, reader: Any, state: Any, *, model_only: bool = False) -> None:
        super().load(reader, state, model_only=model_only)
        for optimizer in self.optimizers:
            for momenta in optimizer.state.values():
                dist.broadcast(momenta["exp_avg" if "exp_avg" in momenta else "momentum_buffer"], 0)


# Evaluating ---------------------------------------------------------------------------------------------


@caught_by("checkpoint_is_what_was_evaluated", "has outputs that differ by")
class EvaluatesItsOwnWeights(LocalPrepared):
    @contextmanager
    def evaluating(self) -> Any:
        with AveragedPrepared.evaluating(self):
            yield


@caught_by("checkpoint_is_what_was_evaluated", "has outputs that differ by")
class EvaluatesWithItsOwnBuffers(LocalPrepared):
    def make_buffers_equal(self) -> None:
        if torch.is_grad_enabled():
            super().make_buffers_equal()


@caught_by("checkpoint_is_what_was_evaluated", "has outputs that differ by")
class SavesTheFirstRanksWeights(LocalPrepared):
    def model_tensors(self) -> dict[str, Tensor]:
        self.make_buffers_equal()
        return Prepared.model_tensors(self)


@caught_by("validation_changes_nothing", "with validations")
class KeepsTheAverage(LocalPrepared):
    @contextmanager
    def evaluating(self) -> Any:
        self.average_weights([parameter.data for parameter in self.original_module.parameters()])
        self.make_buffers_equal()
        yield


@caught_by("validation_changes_nothing", "with validations")
class DropsResidualsAtValidation(RoundingPrepared):
    @contextmanager
    def evaluating(self) -> Any:
        self.residuals = {name: torch.zeros_like(value) for name, value in self.residuals.items()}
        with super().evaluating():
            yield


@caught_by("validation_changes_nothing", "with validations")
class AveragesToSave(LocalPrepared):
    """Its checkpoint is right, and training goes on from it."""

    def model_tensors(self) -> dict[str, Tensor]:
        self.average_weights([parameter.data for parameter in self.original_module.parameters()])
        self.make_buffers_equal()
        return Prepared.model_tensors(self)


# The end ------------------------------------------------------------------------------------------------


@caught_by("ranks_after_fit", "after the fit, rank")
class LeavesRanksApart(LocalPrepared):
    def restore_module(self) -> None:
        self.make_buffers_equal()


@caught_by("ranks_after_fit", "running_mean")
class LeavesItsOwnBuffers(RoundingPrepared):
    def restore_module(self) -> None:
        pass
