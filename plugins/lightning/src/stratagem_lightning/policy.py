"""`LightningPolicy`: what Lightning's loops do otherwise than Stratagem's."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem_trainer.loops.policy import EpochEnd, LoopPolicy
from stratagem_trainer.stage.progress import Progress


class LightningPolicy(LoopPolicy):
    """Gives Lightning's programs Lightning's numbers."""

    shares_samplers = True
    restores_user_state_first = True
    evaluations_draw = True
    shuffles_evaluations = True
    seeds_data = True
    counts_evaluation_steps = True

    def divisors(self, size: int, micro_batches: int, last_share: float) -> Sequence[float]:
        """Divide by `accumulate_grad_batches`, in the epoch's last, smaller step too."""
        return [micro_batches] * size

    def count_manual_step(self, progress: Progress) -> None:
        """Count the step of each optimizer, as `global_step` and `max_steps` do."""
        progress.further_steps += 1

    def count_manual_batch(self, progress: Progress) -> None:
        """Count the batch in place of its first optimizer step, which is counted already."""
        progress.step += 1
        progress.further_steps -= 1

    def steps_schedulers_of_manual_modules(self, mentions_schedulers: bool) -> bool:
        """Leave the schedulers to the module."""
        return False

    def ends_cut_epoch(self, num_batches: int) -> bool:
        """End an epoch that was cut: the next checkpoint goes on with the next one."""
        return num_batches > 0

    def end_epoch(self, epoch: EpochEnd) -> None:
        """Step schedulers before the validation, and call callbacks before the module.

        Callbacks that judge the epoch, and schedulers that take a metric, come last: they read what the module logs.
        An epoch that was cut steps no schedulers, and is validated only where `should_stop` has cut it.
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
