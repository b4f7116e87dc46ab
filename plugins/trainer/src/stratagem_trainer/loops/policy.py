"""`LoopPolicy`: where the loops of other trainers differ from this one's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

    from stratagem import Collectives
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


class SavedUserState(Protocol):
    """What a checkpoint has for the user's objects; `LoopPolicy` says what gets it, and when."""

    def call_module(self) -> None:
        """Call the module's `on_load_checkpoint`."""

    def call_callbacks(self) -> None:
        """Call `on_load_checkpoint` of all callbacks."""

    def restore_datamodule(self) -> None:
        """Call the data module's `load_state_dict`, where there is one."""

    def restore_callbacks(self) -> None:
        """Call `load_state_dict` of the callbacks with `is_restored_in_evaluations`."""


class LoopPolicy:
    """Decides where trainers differ. Derive from it to run another trainer's programs with its numbers.

    It goes to the workers with the settings, so that it must be picklable.
    """

    # Data -----------------------------------------------------------------------------------------

    def data_seed(self, seed: int | None, global_seed: int | None) -> int:
        """Return the seed of random orders of data.

        Args:
            seed: of the run; None where it has none.
            global_seed: of `seed_everything`; None where it wasn't called.
        """
        return seed or 0

    def training_loader(self, loader: Any, ranks: Collectives, seed: int) -> Any:
        """Return a training loader whose samples the trainer then shares among the ranks. Collective.

        Args:
            loader: the user's.
            ranks: those that read different data.
            seed: of random orders.
        """
        return loader

    def evaluation_loader(self, loader: Any, stage: str, ranks: Collectives, seed: int) -> tuple[Any, bool]:
        """Return a loader of an evaluation, and whether the trainer then shares its samples. Collective.

        Args:
            loader: the user's.
            stage: "validate", "test" or "predict".
            ranks: those that read different data.
            seed: of random orders.
        """
        from stratagem_trainer.data.shared_sampler import distribute_sampler

        return distribute_sampler(loader, ranks, seed, evaluation=True), True

    def begin_evaluation(self, loader: Any, epoch: int) -> None:
        """Prepare a loader that an evaluation is about to read.

        Args:
            loader: what the evaluation reads; it has `set_epoch` where ranks share what a sampler draws.
            epoch: of the fit; 0 outside of one.
        """

    # Evaluations ----------------------------------------------------------------------------------

    def evaluation_random_numbers(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the context of a validation or test: training goes on with the numbers that it would have drawn."""
        from stratagem_trainer.stage.seeding import random_numbers_kept

        return random_numbers_kept(device)

    def evaluation_step(self, step: int, batch: int) -> int:
        """Return the step with which loggers get what a single batch of an evaluation has logged.

        Args:
            step: completed optimizer steps before the evaluation.
            batch: the batch's index, counted over all evaluations of the run that read its loader.
        """
        return step

    # Checkpoints ----------------------------------------------------------------------------------

    def before_restore(self, saved: SavedUserState) -> None:
        """Restore what loaders, optimizers and weights may depend on, when a fit is resumed."""
        saved.restore_datamodule()

    def after_restore(self, saved: SavedUserState) -> None:
        """Restore what needs the weights, optimizers and callbacks of the resumed fit."""
        saved.call_callbacks()
        saved.call_module()

    def restore_for_evaluation(self, saved: SavedUserState) -> None:
        """Restore what an evaluation of a checkpoint needs, before its weights are read."""
        saved.call_callbacks()
        saved.call_module()

    # Training -------------------------------------------------------------------------------------

    def divisors(self, size: int, micro_batches: int, last_share: float) -> Sequence[float]:
        """Return by what the loss of each micro-batch of a step is divided.

        Args:
            size: micro-batches of this step.
            micro_batches: of a whole step; an epoch's last one may be smaller.
            last_share: samples of this step's last micro-batch, relative to those of the others.
        """
        whole = size - 1 + last_share
        return [*[whole] * (size - 1), whole / last_share]

    def count_manual_step(self, progress: Progress) -> None:
        """Count the step of one optimizer that the module itself steps."""

    def count_manual_batch(self, progress: Progress) -> None:
        """Count a batch in which the module itself has stepped its optimizers."""
        progress.step += 1

    def steps_schedulers_of_manual_modules(self, mentions_schedulers: bool) -> bool:
        """Whether the loop steps the schedulers of a module that itself steps its optimizers.

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
