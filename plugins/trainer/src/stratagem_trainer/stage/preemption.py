"""Stop a stage at a signal or time limit. A fit saves a checkpoint, from which its next run resumes."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from stratagem_launch import Heartbeat, Preempted, PreemptionWatch, SlurmJob, preemption_watch

from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint
from stratagem_trainer.durations import duration_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stratagem import Runtime
    from stratagem_trainer.settings import TrainerSettings
    from stratagem_trainer.stage.state import StageState
    from stratagem_trainer.view import TrainerView

PREFIX = "preempted-step="
"""Prefix of preemption checkpoints' names in the run's checkpoint folder."""
JOB = ".job"
"""File in a run's folder with the ID of the batch job that made the run."""


def stop_watch(
    runtime: Runtime, settings: TrainerSettings, began: float
) -> AbstractContextManager[PreemptionWatch]:
    """Return a watch for the trainer's stop signals and time limit. Collective.

    Args:
        runtime: an entered runtime.
        settings: the trainer's settings.
        began: when the run began, in seconds since the epoch.
    """
    limit = duration_s("time_limit", settings.time_limit)
    end = None if limit is None else began + limit
    return preemption_watch(runtime, settings.stop_signals, settings.grace_period_s, end)


@contextmanager
def heartbeat(
    runtime: Runtime, settings: TrainerSettings, run_dir: str | None
) -> Iterator[Callable[[], None] | None]:
    """Yield a function to call when this rank makes progress; None if there is no `step_timeout_s`."""
    if settings.step_timeout_s is None:
        yield None
        return
    until_exit = not runtime.in_launching_process
    beats = Heartbeat(settings.step_timeout_s, runtime.rank, runtime.world_size, run_dir or ".", until_exit)
    with beats:
        yield beats.beat


def save_and_stop(trainer: TrainerView, state: StageState, watch: PreemptionWatch, save: Any) -> NoReturn:
    """Write a checkpoint of the last completed step, and end the run. Collective.

    Raises:
        Preempted: always, after the checkpoint is written.
    """
    runtime, step = trainer.runtime, state.progress.step
    reason = watch.reason or ""
    if runtime.is_main:
        _say("stopping", f"by {reason}, after step {step}")
    folder = trainer.checkpoint_dir
    path = os.path.join(folder, f"{PREFIX}{step}")
    began = watch.notified_at or time.monotonic()
    save(path)
    runtime.session.checkpointer.wait()
    for callback in trainer.callbacks:
        if isinstance(callback, ModelCheckpoint):
            callback.name_last(trainer, path, save)
    runtime.session.checkpointer.wait()
    remove_preempted(trainer, but=path)
    runtime.barrier("preempted")
    if runtime.is_main:
        took = time.monotonic() - began
        _say("saved", f"{path}, {took:.1f} s after the signal; `--ckpt-path auto` resumes from there")
    raise Preempted(reason, path, step, runtime.rank)


def break_off(
    runtime: Runtime, stage: str, watch: PreemptionWatch, predictions: list[Any] | None
) -> NoReturn:
    """End an evaluation without saving anything. Collective.

    Args:
        runtime: an entered runtime.
        stage: "validate", "test" or "predict".
        watch: knows why the stage must stop.
        predictions: those of all ranks so far.

    Raises:
        Preempted: always.
    """
    reason = watch.reason or ""
    if runtime.is_main:
        _say("stopping", f"by {reason}: {stage} is incomplete, and starts over when its command runs again")
    runtime.barrier("preempted")
    raise Preempted(reason, rank=runtime.rank, predictions=predictions if runtime.is_main else None)


def remove_preempted(trainer: TrainerView, but: str | None = None) -> None:
    """Delete the checkpoints of earlier preemptions from the run's folder. Collective."""
    folder = trainer.checkpoint_dir
    found: list[str] = []
    if trainer.is_main and os.path.isdir(folder):
        found = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(PREFIX)]
    for path in trainer.collectives.broadcast(found):
        if path != but:
            trainer.remove_checkpoint(path)


def requeue(preempted: Preempted, settings: TrainerSettings) -> None:
    """Requeue the Slurm job of this process, if `requeue` is set. Only rank 0's process does.

    After SIGTERM it doesn't: Slurm sends SIGTERM to jobs that it requeues itself, and to those that a user cancels.
    """
    job = SlurmJob.of(os.environ)
    if job is None or not settings.requeue or preempted.rank != 0 or preempted.reason == "SIGTERM":
        return
    if not preempted.path:  # a job without a checkpoint would start over each time, and never end
        return
    refusal = job.requeue()
    if refusal is None:
        _say("requeued", f"job {job.job_id}, which resumes automatically")
    else:
        _say("not requeued", f"job {job.job_id}: {refusal}")


def _say(what: str, line: str) -> None:
    print(f"  {what:<12}{line}", file=sys.stderr, flush=True)
