"""`LightningPolicy`: the differences of Lightning's loops from Stratagem's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from stratagem_trainer.data.shared_sampler import (
    SharedSampler,
    ShuffledOrder,
    distribute_sampler,
    is_shuffled,
)
from stratagem_trainer.loops.policy import EpochEnd, LoopPolicy, SavedUserState
from stratagem_trainer.stage.progress import Progress
from stratagem_trainer.stage.seeding import random_numbers_kept

from stratagem import Collectives
from stratagem.sdk.loops import with_sampler


class LightningPolicy(LoopPolicy):
    """Makes loops behave like Lightning's, so that programs get the same results."""

    def data_seed(self, seed: int | None, global_seed: int | None) -> int:
        """Return the run's seed, or the seed given to `seed_everything`."""
        return super().data_seed(global_seed if seed is None else seed, None)

    def training_loader(self, loader: Any, ranks: Collectives, seed: int) -> Any:
        """Let each rank read its share of the samples that a user's sampler draws."""
        return distribute_sampler(loader, ranks, seed)

    def evaluation_loader(self, loader: Any, stage: str, ranks: Collectives, seed: int) -> tuple[Any, bool]:
        """Read a loader with `shuffle=True` in a random order in validations and tests, too.

        On one rank it is the loader's own order. On several ranks it depends on the seed and the epoch, as in torch's
        DistributedSampler, but each sample is read once.
        """
        if stage == "predict" or not is_shuffled(loader):
            return super().evaluation_loader(loader, stage, ranks, seed)
        if ranks.world_size == 1:
            return loader, False
        sampler = SharedSampler(ShuffledOrder(len(loader.dataset), seed), ranks, seed, pad=False)
        return with_sampler(loader, sampler, drop_last=False), True

    def begin_evaluation(self, loader: Any, epoch: int) -> None:
        """Set the epoch, so that each epoch has another order."""
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)

    def evaluation_random_numbers(self, device: torch.device) -> AbstractContextManager[None]:
        """Let a validation use the training's random numbers, which continue from there afterwards."""
        return random_numbers_kept(device, only_after_error=True)

    def evaluation_step(self, step: int, batch: int) -> int:
        """Return the number of the batch."""
        return batch

    def before_restore(self, saved: SavedUserState) -> None:
        """Call `on_load_checkpoint` before optimizers and loaders are created, and before weights are read."""
        saved.call_module()
        saved.call_callbacks()
        saved.restore_datamodule()

    def after_restore(self, saved: SavedUserState) -> None:
        """Do nothing: everything is restored already."""

    def restore_for_evaluation(self, saved: SavedUserState) -> None:
        """Restore the data module and callbacks, too."""
        self.before_restore(saved)
        saved.restore_callbacks()

    def divisors(self, size: int, micro_batches: int, last_share: float) -> Sequence[float]:
        """Divide by `accumulate_grad_batches`, even in the smaller last step of an epoch."""
        return [micro_batches] * size

    def count_manual_step(self, progress: Progress) -> None:
        """Count the step of each optimizer, like `global_step` and `max_steps`."""
        progress.further_steps += 1

    def count_manual_batch(self, progress: Progress) -> None:
        """Count the batch as a step, in place of its first optimizer step."""
        progress.step += 1
        progress.further_steps -= 1

    def steps_schedulers_of_manual_modules(self, mentions_schedulers: bool) -> bool:
        """Leave the schedulers to the module: return False."""
        return False

    def ends_cut_epoch(self, num_batches: int) -> bool:
        """Count an epoch that was cut short as finished: the next checkpoint continues with the next epoch."""
        return num_batches > 0

    def end_epoch(self, epoch: EpochEnd) -> None:
        """Step schedulers before the validation, and call callbacks before the module.

        Callbacks that evaluate the epoch, and schedulers that take a metric, come last, because they read what the
        module logs. After an epoch that was cut short, schedulers aren't stepped, and the validation runs only if
        `should_stop` cut it.
        """
        if not epoch.is_cut:
            epoch.step_schedulers(takes_metric=False)
        if not epoch.is_skipped:
            if epoch.is_stopped():
                epoch.validate(at_a_stop=True)
            elif not epoch.is_cut:
                epoch.validate()
        epoch.reduce_metrics()
        epoch.mark_as_over()
        epoch.call_callbacks(judging=False)
        epoch.call_module()
        epoch.reduce_metrics()
        if not epoch.is_cut:
            epoch.step_schedulers(takes_metric=True)
        epoch.call_callbacks(judging=True)
        epoch.reduce_metrics()
