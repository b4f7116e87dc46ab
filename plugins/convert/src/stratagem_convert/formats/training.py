"""What a run needs to resume, besides the weights: optimizers' states, learning rate schedules and progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stratagem.errors import CheckpointError
from stratagem_convert.formats.stored import StoredTensor

WEIGHTS, OPTIMIZERS, SCHEDULERS = "state_dict", "optimizer_states", "lr_schedulers"
EPOCH, STEP, BATCH = "epoch", "global_step", "batch"
NAMES = "optimizer_parameter_names"
"""Entries of a file of torch.save. The first five are also those of Lightning."""


@dataclass(frozen=True)
class StoredOptimizer:
    """One optimizer, with parameters by name.

    Attributes:
        groups: its groups. "params" has the names of a group's parameters.
        states: name of a parameter → its states: tensors in files, or other values.
        kind: name of its class; "" if unknown.
    """

    groups: Sequence[Mapping[str, Any]]
    states: Mapping[str, Mapping[str, Any]]
    kind: str = ""

    def names(self) -> list[str]:
        """Return the names of the parameters, in the optimizer's order."""
        return [name for group in self.groups for name in group["params"]]

    def tensors(self) -> dict[tuple[str, str], StoredTensor]:
        """Return the states that are tensors in files, by parameter and state."""
        return {
            (name, key): value
            for name, states in self.states.items()
            for key, value in states.items()
            if isinstance(value, StoredTensor)
        }

    def as_torch(self) -> dict[str, Any]:
        """Return the optimizer's `state_dict()`, with numbers for parameters and `StoredTensor` for tensors."""
        numbers = {name: number for number, name in enumerate(self.names())}
        groups = [{**group, "params": [numbers[name] for name in group["params"]]} for group in self.groups]
        states = {
            number: dict(self.states[name]) for name, number in numbers.items() if self.states.get(name)
        }
        return {"state": states, "param_groups": groups}


@dataclass(frozen=True)
class Training:
    """The training in a checkpoint, besides its weights.

    Attributes:
        optimizers: in the run's order.
        schedulers: what their `state_dict()` returned.
        epoch: index of the epoch in which it resumes.
        batch: number of that epoch's micro-batches that each rank has done.
        step: number of completed optimizer steps.
        before_end: whether all batches of the epoch are done, but schedulers that step per epoch haven't stepped.
    """

    optimizers: Sequence[StoredOptimizer]
    schedulers: Sequence[Any] = field(default_factory=tuple)
    epoch: int = 0
    batch: int = 0
    step: int = 0
    before_end: bool = False

    def require_place(self, path: str) -> None:
        """Refuse a training that was saved between an epoch's last batch and its end. Other formats can't express
        that.

        Raises:
            CheckpointError: it was saved there (`before_end`).
        """
        if self.before_end:
            raise CheckpointError(
                f"{path} was saved between the last batch of epoch {self.epoch} and the epoch's end, where its "
                "learning rate schedulers step: convert one of another step or of the epoch's end, or --weights-only"
            )

    def __str__(self) -> str:
        count = sum(len(each.tensors()) for each in self.optimizers)
        many = "s" if len(self.optimizers) > 1 else ""
        return (
            f"{len(self.optimizers)} optimizer{many}, of {count} tensors, {len(self.schedulers)} learning rate "
            f"schedulers, epoch {self.epoch}, batch {self.batch}, step {self.step}"
        )

    def renamed(self, rename: Callable[[str], str]) -> Training:
        """Return the same training with the names that `rename` returns."""
        optimizers = [
            replace(
                each,
                groups=[
                    {**group, "params": [rename(name) for name in group["params"]]} for group in each.groups
                ],
                states={rename(name): states for name, states in each.states.items()},
            )
            for each in self.optimizers
        ]
        return replace(self, optimizers=optimizers)

    def as_torch(self) -> dict[str, Any]:
        """Return the entries of a file of torch.save, without the weights."""
        return {
            EPOCH: self.epoch,
            STEP: self.step,
            BATCH: self.batch,
            OPTIMIZERS: [each.as_torch() for each in self.optimizers],
            SCHEDULERS: list(self.schedulers),
            NAMES: [each.names() for each in self.optimizers],
        }
