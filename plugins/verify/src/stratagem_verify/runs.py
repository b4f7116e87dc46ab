"""The runs under the strategy, as every rank runs them, and the runs in one process that they are compared with."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from stratagem_testing.first_difference import Recording

from stratagem.sdk.loops import restore_rng
from stratagem_verify import state
from stratagem_verify.observed import (
    Capture,
    Record,
    Resumed,
    Seen,
    Validated,
)
from stratagem_verify.plan import Plan
from stratagem_verify.watched import Watched, sample_digests

if TYPE_CHECKING:
    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer

Form = Literal["ranks", "whole", "same"]
"""How one process gets the batches of several ranks. "ranks": one after the other in each step, as parts of it.
"whole": joined to one batch. "same": only those of the first rank."""

_UNCLIPPED: dict[str, Any] = {"gradient_clip_val": None, "gradient_clip_algorithm": "norm"}


# Under the strategy --------------------------------------------------------------------------------------


def capture(
    plan: Plan, name: str, gradients: bool = False, quiet: bool = False, steps: int | None = None
) -> Seen:
    """Train as the user does; record batches, generators and a checkpoint in the middle. Run by every rank.

    Args:
        plan: what is verified.
        name: name of the run's files.
        gradients: make one step of plain SGD, whose change of the weights is the gradient.
        quiet: keep the module in evaluation mode.
        steps: number of steps, if not the plan's.
    """
    steps = 1 if gradients else steps or plan.steps
    callback = Capture(plan.path(name), 0 if gradients else max(1, plan.steps // 2), steps, quiet)
    make = Watched(plan.make_module, gradients)
    plan.trainer(name, [callback], max_steps=steps, **(_UNCLIPPED if gradients else {})).fit(make)
    shared = bool(plan.settings.get("use_distributed_sampler", True))
    callback.seen.samples = [] if gradients else sample_digests(make.loader, shared)
    callback.seen.has_validation = make.has_validation
    return callback.seen


def resume(plan: Plan, name: str, path: str, names: Collection[str]) -> Seen:
    """Resume from a checkpoint to the end, and read some values outside of it. Run by every rank."""
    callback = Resumed(plan.path(name), names)
    plan.trainer(name, [callback]).fit(Watched(plan.make_module), ckpt_path=path)
    return callback.seen


def train_with_validation(plan: Plan, name: str, interval: int | None) -> Seen:
    """Train as `capture` does, with validations in between. Run by every rank."""
    callback = Validated(plan.path(name))
    settings = {"limit_val_batches": 2, "val_check_interval": interval}
    plan.trainer(name, [callback], **settings).fit(Watched(plan.make_module))
    return callback.seen


def validate(plan: Plan, name: str, path: str, alone: bool = False) -> Seen:
    """Validate with the weights of a checkpoint. Run by every rank, or in one process."""
    make, seen = Watched(plan.make_module), Seen()
    limit = plan.settings.get("limit_val_batches")
    if alone and isinstance(limit, int):
        limit *= len(_files(plan, "train"))
    trainer = (plan.trainer_alone if alone else plan.trainer)(name, [], limit_val_batches=limit)
    seen.metrics = dict(trainer.validate(make, ckpt_path=path)[0])
    seen.validation_draws = make.draws
    return seen


def load(plan: Plan, name: str, path: str, alone: bool = False) -> Seen:
    """Load the checkpoint of a finished run, without further training. Run by every rank, or in one process."""
    callback = Record(plan.path(name))
    trainer = (plan.trainer_alone if alone else plan.trainer)(name, [callback])
    trainer.fit(Watched(plan.make_module), ckpt_path=path)
    return callback.seen


def train_on_same(plan: Plan, name: str, source: str, steps: int, gradients: bool = False) -> Seen:
    """Train with the first rank's batches and random numbers on every rank. Run by every rank."""
    replay = _Replay(plan, name, source, "same")
    settings = _UNCLIPPED if gradients else {}
    plan.trainer(name, [replay], max_steps=steps, **settings).fit(
        Watched(plan.make_module, gradients), replay.loader
    )
    return replay.seen


def record(plan: Plan, name: str, folder: str, steps: int) -> Seen:
    """Train as `capture` does, and record it for `stratagem diff`. Run by every rank."""
    callback = Record(plan.path(name))
    callbacks = [callback, Recording(folder, steps=steps)]
    plan.trainer(name, callbacks, max_steps=steps).fit(Watched(plan.make_module))
    return callback.seen


# In one process -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repetition:
    """How one process repeats what `capture` recorded."""

    source: str
    """Name of the recorded run."""
    form: Form
    steps: int
    gradients: bool = False
    noise: float = 0.0
    quiet: bool = False
    seed: int | None = None
    """Seed for other random numbers than those of the ranks."""


def repeat(plan: Plan, how: Repetition, recording: Sequence[Callback] = ()) -> Seen:
    """Train in one process on the ranks' batches, from the same weights.

    Args:
        plan: what is verified.
        how: how one process repeats the run.
        recording: a callback that records the training.

    Raises:
        JoinError: the ranks' batches can't be joined.
    """
    name = f"{how.source}-{how.form}-{how.noise}-{how.quiet}-{how.seed}"
    replay = _Replay(plan, name, how.source, how.form, how.noise, how.quiet, how.seed)
    ranks = replay.ranks if how.form == "ranks" else 1
    make = Watched(plan.make_module, how.gradients, ranks)
    settings = {"max_steps": how.steps, "accumulate_grad_batches": plan.accumulate * ranks}
    if how.gradients:
        settings |= _UNCLIPPED
    plan.trainer_alone(name, [replay, *recording], **settings).fit(make, replay.loader)
    return replay.seen


def train_alone(plan: Plan, name: str) -> Seen:
    """Train in one process with the module's own data."""
    callback = Record(plan.path(name))
    plan.trainer_alone(name, [callback]).fit(Watched(plan.make_module))
    return callback.seen


class _Replay(Record):
    """Yields the ranks' batches, and restores each rank's generators and module state for its batches."""

    def __init__(
        self,
        plan: Plan,
        name: str,
        source: str,
        form: Form,
        noise: float = 0.0,
        quiet: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(plan.path(name), f"{plan.path(source)}-start", noise, quiet)
        kept = [torch.load(path, weights_only=False) for path in _files(plan, source)]
        if form == "same":
            kept = kept[:1]
        self.ranks, self._form, self._seed = len(kept), form, seed
        self._rngs = [rng for rngs in zip(*(each["rngs"] for each in kept)) for rng in rngs]
        rows = list(zip(*(each["batches"] for each in kept)))
        if form == "whole":
            self._batches = [(row[0][0], state.joined([batch for _, batch in row])) for row in rows]
        else:
            self._batches = [entry for row in rows for entry in row]
        self.loader = _Epochs(self._batches)
        self._index = 0
        self._states: list[dict[str, Any]] = []

    def on_start(self, trainer: Trainer, module: Module, stage: str) -> None:
        super().on_start(trainer, module, stage)
        if self._form == "ranks":
            self._states = [state.rank_state(module) for _ in range(self.ranks)]

    def on_train_epoch_start(self, trainer: Trainer, module: Module) -> None:
        self.loader.epoch = trainer.current_epoch

    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        if self._states:
            state.restore_rank_state(module, self._states[self._index % self.ranks])
        rng = self._index * (self.ranks if self._form == "whole" else 1)
        restore_rng(self._rngs[min(rng, len(self._rngs) - 1)], trainer.device)
        if self._seed is not None:
            torch.manual_seed(1000 * self._seed + self._index)
        super().on_train_batch_start(trainer, module, batch, batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)
        if self._states:
            self._states[self._index % self.ranks] = state.rank_state(module)
        self._index += 1


class _Epochs:
    """A loader of recorded batches. It yields those of `epoch`."""

    def __init__(self, batches: list[tuple[int, Any]]) -> None:
        self.epoch = 0
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        yield from (batch for epoch, batch in self._batches if epoch == self.epoch)


def _files(plan: Plan, name: str) -> list[str]:
    """Return the paths of the ranks' recordings, in the order of ranks."""
    found: list[str] = []
    while os.path.exists(path := f"{plan.path(name)}-rank{len(found)}.pt"):
        found.append(path)
    return found
