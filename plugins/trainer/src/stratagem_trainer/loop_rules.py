"""`LoopRules`: where the loops of other trainers do otherwise than this one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopRules:
    """For distributions that run the programs of another trainer with its numbers; a `Trainer` has the defaults."""

    counts_each_optimizer: bool = False
    """Of a module that optimizes manually, `global_step` and `max_steps` count each optimizer's steps, once they are
    done, rather than batches; its schedulers aren't stepped for it."""
    ends_cut_epoch: bool = False
    """An epoch that `max_steps` or `should_stop` cuts short is ended as a whole one: its values are reduced,
    `on_train_epoch_end` is called, and the next checkpoint goes on with the next epoch. Where `should_stop` cuts it,
    it is validated before. Schedulers that are stepped after epochs aren't."""
    divides_by_whole_window: bool = False
    """The gradients of an epoch's last, smaller window are divided by `accumulate_grad_batches`, too."""
    steps_schedulers_before_validation: bool = False
    """Schedulers that are stepped after epochs are before its validation; those that take a metric after
    `on_train_epoch_end`, for what that logs."""
    callbacks_end_epoch_first: bool = False
    """`on_train_epoch_end` of callbacks comes before the module's, but for those with `judges_epochs`."""
    shares_samplers: bool = False
    """Under several ranks each reads its share of what a training `DataLoader`'s sampler of the user's draws."""
    restores_user_state_first: bool = False
    """`on_load_checkpoint`, of the module and then of callbacks, is called before optimizers and loaders are made and
    weights are read. Evaluations of a checkpoint also restore the data module and callbacks with
    `is_restored_in_evaluations`."""
    evaluations_draw: bool = False
    """A validation draws from the training's random numbers, which go on where it has stopped; a sanity check leaves
    them as they were."""
    shuffles_evaluations: bool = False
    """A validation or test reads a loader with `shuffle=True` in a random order: on one rank as the loader draws it,
    on several as torch's DistributedSampler does, by the seed and the epoch, each sample once."""
    seeds_data: bool = False
    """Random orders of data depend on the seed of `seed_everything`, where the run has none."""
    counts_evaluation_steps: bool = False
    """What single steps of an evaluation log has the number of the batch as its step, counted over the evaluations of
    a run, rather than the optimizer steps before."""
    validates_skipped_epoch: bool = True
    """Whether an epoch that `on_train_batch_start` ends by -1 is validated."""
