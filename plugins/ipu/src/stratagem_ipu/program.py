"""`Program`: a training step as poptorch compiles and runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from stratagem_sharding.part_of_batch import part_of_batch
from torch import nn
from torch.optim import Optimizer

from stratagem import ConfigError
from stratagem.sdk.loops import loss_of
from stratagem.sdk.tensors import leaves_in, map_tensors
from stratagem_ipu import library
from stratagem_ipu.refusals import refuse_batch

ADVICE = "choose another strategy, since poptorch compiles the step itself"


class NoIndex:
    """Given to a step in the place of `batch_idx`, which a program would have as a constant."""

    def _refuse(self, *_: object) -> Any:
        raise ConfigError(
            "training_step reads batch_idx, which a compiled program has as the constant of its first batch: leave "
            "it out, or choose another strategy"
        )

    __index__ = __int__ = __float__ = __bool__ = __str__ = __format__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __mod__ = __floordiv__ = __add__ = __radd__ = __sub__ = __mul__ = (
        _refuse
    )
    __eq__ = __ne__ = _refuse
    __hash__ = _refuse


class TensorStep(nn.Module):
    """A training step that takes tensors alone and returns its loss, marked as such.

    Args:
        steps: calls the user's training step.
        original_module: the user's.
        batch: the first one; its containers are those of all.
    """

    def __init__(self, steps: nn.Module, original_module: nn.Module, batch: Any) -> None:
        super().__init__()
        self.steps = steps
        # Not a submodule: `steps` has it.
        self._users = [original_module]
        self._batch = batch

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        given = iter(tensors)
        batch = map_tensors(lambda _: next(given), self._batch)
        with _without_logging(self._users[0]), part_of_batch(ADVICE):
            output = self.steps("training_step", batch, NoIndex())
        loss = loss_of(output)
        if loss is None or (loss is not output and len(output) > 1):
            raise ConfigError(
                f"training_step returned {'no loss' if loss is None else 'more than its loss'}, and a compiled "
                "program has the loss alone: return that"
            )
        marked: torch.Tensor = library.load().identity_loss(loss, reduction="none")
        return marked


class Program:
    """A training step on IPUs: compiled at its first batch, then run once per batch.

    Args:
        steps: calls the user's training step.
        original_module: the user's, on the CPU.
        optimizer: the user's; the program steps as it says at each batch.
        replicas: IPUs, each with a part of every batch.
        accumulation: into how many parts an IPU cuts its part.
        seed: of the IPUs' generators; poptorch's choice when None.
    """

    def __init__(
        self,
        steps: nn.Module,
        original_module: nn.Module,
        optimizer: Optimizer,
        replicas: int,
        accumulation: int,
        seed: int | None,
    ) -> None:
        self._steps, self._module, self._optimizer = steps, original_module, optimizer
        self._replicas, self._accumulation, self._seed = replicas, accumulation, seed
        self._executor: Any = None
        self._shapes: list[torch.Size] = []
        self._settings: list[dict[str, Any]] = []
        self._is_ahead = False

    def run(self, batch: Any) -> torch.Tensor:
        """Run forward, backward and the optimizer's step; return the mean of the parts' losses.

        Raises:
            ConfigError: the batch can't be cut evenly, or has another shape than the first.
        """
        tensors = list(leaves_in(batch))
        refuse_batch(tensors, self._replicas * self._accumulation)
        shapes = [tensor.shape for tensor in tensors]
        if self._executor is None:
            self._executor = self._compiled(batch)
            self._shapes = shapes
        if shapes != self._shapes:
            raise ConfigError(
                f"a batch has shapes {[tuple(s) for s in shapes]}, and the program was compiled for "
                f"{[tuple(s) for s in self._shapes]}: make batches of one shape, with drop_last=True"
            )
        if self._settings != (today := _settings(self._optimizer)):
            self._executor.setOptimizer(self._optimizer)
            self._settings = today
        losses: torch.Tensor = self._executor(*tensors)
        self._is_ahead = True
        return losses.mean()

    def _compiled(self, batch: Any) -> Any:
        poptorch = library.load()
        options = poptorch.Options()
        options.deviceIterations(1)
        options.replicationFactor(self._replicas)
        options.outputMode(poptorch.OutputMode.All)
        options.Training.gradientAccumulation(self._accumulation)
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
        if self._seed is not None:
            options.randomSeed(self._seed)
        self._settings = _settings(self._optimizer)
        step = TensorStep(self._steps, self._module, batch)
        return poptorch.trainingModel(step, options=options, optimizer=self._optimizer)

    def fetch(self) -> None:
        """Copy the parameters from the device, where they are newer."""
        if self._is_ahead:
            self._executor.copyWeightsToHost()
            self._is_ahead = False

    def send(self) -> None:
        """Copy the parameters to the device, after they were changed here."""
        if self._executor is not None:
            self._executor.copyWeightsToDevice()
            self._is_ahead = False

    def close(self) -> None:
        """Let go of the device."""
        if self._executor is not None:
            self._executor.destroy()


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]


@contextmanager
def _without_logging(module: nn.Module) -> Iterator[None]:
    def log(name: str, *_: Any, **__: Any) -> None:
        raise ConfigError(
            f"training_step logs {name!r}, whose value a compiled program doesn't hand out: log in "
            "on_train_batch_end, which has the loss as outputs"
        )

    # patch: step logs
    module.__dict__["log"] = log
    try:
        yield
    finally:
        del module.__dict__["log"]
