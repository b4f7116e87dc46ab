"""Find the checkpoints in a run's folder, and whether a fit resumes from them automatically."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from stratagem_launch import SlurmJob

from stratagem.errors import CheckpointError
from stratagem_trainer.callbacks.last_link import folder_of, is_url
from stratagem_trainer.callbacks.model_checkpoint import ModelCheckpoint
from stratagem_trainer.saving.auto_resume import AutoResume, is_unchanged
from stratagem_trainer.stage.preemption import JOB

if TYPE_CHECKING:
    from stratagem import CheckpointReader
    from stratagem_trainer.view import TrainerView

AUTO = "auto"
"""The `ckpt_path` of a fit that resumes from the newest checkpoint in its folder, or starts if there is none."""


def checkpoint_to_go_on_from(
    trainer: TrainerView, attempts: AutoResume, ckpt_path: str | None
) -> CheckpointReader | None:
    """Open the checkpoint from which a fit resumes; None if it starts from the beginning. Collective.

    The order of precedence: the checkpoint of an earlier attempt of this launch; with "auto", or in a requeued job,
    the newest checkpoint in the run's folder; the checkpoint at `ckpt_path`.
    """
    reader = attempts.newest()
    if reader is None and (ckpt_path == AUTO or resumes_after_requeue(trainer)):
        reader = newest_in_run_dir(trainer)
        if reader is not None and trainer.is_main:
            print(f"  {'resuming':<12}from {reader.path}", file=sys.stderr, flush=True)
    if reader is None and ckpt_path not in (None, AUTO):
        return trainer.runtime.session.open_checkpoint(ckpt_path, trainer.settings.verify_checkpoints)
    return reader


def newest_in_run_dir(trainer: TrainerView) -> CheckpointReader | None:
    """Open the newest checkpoint in the run's folder from which a fit can resume, or return None. Collective."""
    folders = {trainer.checkpoint_dir}
    for callback in trainer.callbacks:
        if isinstance(callback, ModelCheckpoint):
            folders.add(folder_of(callback.given_dirpath, trainer.run_dir, trainer.checkpoint_dir))
    found = _newest_first(folders) if trainer.is_main else []
    for path in trainer.collectives.broadcast(found):
        try:
            reader = trainer.runtime.session.checkpointer.open(path, trainer.settings.verify_checkpoints)
        except CheckpointError:
            continue  # incomplete, or not a checkpoint
        if reader.state.get("kind") == "trainer" and is_unchanged(reader, trainer.is_main):
            trainer.runtime.session.refuse_other_ranks(reader)
            return reader
    return None


def resumes_after_requeue(trainer: TrainerView) -> bool:
    """Return whether this Slurm job was restarted, and wrote the run's folder before. Collective."""
    job = SlurmJob.of(os.environ)
    own = False
    if trainer.is_main and job is not None and job.restarts and trainer.run_dir is not None:
        own = job_of(trainer.run_dir) == job.job_id
    return bool(trainer.collectives.broadcast(own))


def job_of(run_dir: str) -> str | None:
    """Return the ID of the batch job that wrote a run's folder; None if no job did."""
    try:
        with open(os.path.join(run_dir, JOB), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def note_job(run_dir: str) -> None:
    """Write the ID of this batch job to a run's folder. Does nothing outside of a job."""
    job = SlurmJob.of(os.environ)
    if job is not None:
        with open(os.path.join(run_dir, JOB), "w", encoding="utf-8") as file:
            file.write(f"{job.job_id}\n")


def _newest_first(folders: set[str]) -> list[str]:
    found: dict[str, float] = {}
    for folder in folders:
        if not is_url(folder) and os.path.isdir(folder):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir():
                        real = os.path.realpath(entry.path)
                        found[real] = os.stat(real).st_mtime
    return sorted(found, key=lambda path: found[path], reverse=True)
