"""`LoopPolicy`: where the loops of other trainers differ from this one's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from stratagem_trainer.stage.progress import Progress


class EpochEnd(Protocol):
    """What can be done at the end of a training epoch; `LoopPolicy.end_epoch` says in which order."""

    is_cut: bool
    """Whether `max_steps`, `should_stop` or `on_train_batch_start` ended it before its last batch."""
    is_skipped: bool
    """Whether `on_train_batch_start` ended it."""

    def is_stopped(self) -> bool:
        """Whether `should_stop` ends the fit here."""

    def validate(self, at_a_stop: bool = False) -> None:
        """Validate where that is due: by the settings, or `at_a_stop` wherever this epoch's last batches weren't."""

    def step_schedulers(self, takes_metric: bool | None = None) -> None:
        """Step the schedulers that are due: all, only those that take a metric, or only the others."""

    def reduce_metrics(self) -> None:
        """Reduce what was logged for the epoch. Collective."""

    def mark_as_over(self) -> None:
        """From here on, a checkpoint resumes with the next epoch."""

    def call_module(self) -> None:
        """Call the module's `on_train_epoch_end`."""

    def call_callbacks(self, judging: bool | None = None) -> None:
        """Call `on_train_epoch_end` of all callbacks, only of those with `judges_epochs`, or only of the others."""


class LoopPolicy:
    """Decides where trainers differ. Derive from it to run another trainer's programs with its numbers.

    It goes to the workers with the settings, so that it must be picklable.
    """

    shares_samplers = False
    """Under several ranks each reads its share of what a training `DataLoader`'s sampler of the user's draws."""
    restores_user_state_first = False
    """`on_load_checkpoint`, of the module and then of callbacks, is called before optimizers and loaders are made and
    weights are read. Evaluations of a checkpoint also restore the data module and callbacks with
    `is_restored_in_evaluations`."""
    evaluations_draw = False
    """A validation draws from the training's random numbers, which go on where it has stopped; a sanity check leaves
    them as they were."""
    shuffles_evaluations = False
    """A validation or test reads a loader with `shuffle=True` in a random order: on one rank as the loader draws it,
    on several as torch's DistributedSampler does, by the seed and the epoch, each sample once."""
    seeds_data = False
    """Random orders of data depend on the seed of `seed_everything`, where the run has none."""
    counts_evaluation_steps = False
    """What single steps of an evaluation log has the number of the batch as its step, counted over the evaluations of
    a run, rather than the optimizer steps before."""

    def divisors(self, size: int, micro_batches: int, last_share: float) -> Sequence[float]:
        """Return by what the loss of each micro-batch of a step is divided.

        Args:
            size: micro-batches of this step.
            micro_batches: of a whole step; an epoch's last one may be smaller.
            last_share: samples of this step's last micro-batch, relative to those of the others.
        """
        if last_share == 1.0:
            return [size] * size
        whole = size - 1 + last_share
        return [*[whole] * (size - 1), whole / last_share]

    def count_manual_step(self, progress: Progress) -> None:
        """Count the step of one optimizer that a module steps by itself."""

    def count_manual_batch(self, progress: Progress) -> None:
        """Count a batch in which a module has stepped its optimizers by itself."""
        progress.step += 1

    def steps_schedulers_of_manual_modules(self, mentions_schedulers: bool) -> bool:
        """Whether the loop steps the schedulers of a module that steps its optimizers by itself.

        Args:
            mentions_schedulers: whether the module's code asks for `lr_schedulers()`.
        """
        return not mentions_schedulers

    def ends_cut_epoch(self, num_batches: int) -> bool:
        """Whether an epoch that was cut after `num_batches` is ended as a whole one, and not resumed later."""
        return False

    def end_epoch(self, epoch: EpochEnd) -> None:
        """End a training epoch. Collective."""
        epoch.validate()
        epoch.reduce_metrics()
        epoch.step_schedulers()
        epoch.mark_as_over()
        epoch.call_module()
        # Callbacks read what the module has logged in its hook.
        epoch.reduce_metrics()
        epoch.call_callbacks()
        epoch.reduce_metrics()
