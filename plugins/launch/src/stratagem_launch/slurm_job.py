"""`SlurmJob`: the Slurm job that a process runs in: when it ends, and how to requeue it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

_WAIT_S = 20.0
"""How long the controller may take to answer."""


@dataclass(frozen=True)
class SlurmJob:
    """A job, as described by Slurm's environment variables."""

    job_id: str
    """The job's ID as scontrol takes it; "12_3" for a task of an array."""
    restarts: int = 0
    """How often the run or Slurm has requeued the job."""
    end_time: float | None = None
    """When Slurm ends it, in seconds since the epoch; None if no variable has it, as before Slurm 23.02."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SlurmJob | None:
        """Return the job that these variables are from; None outside of one, or where they can't be read."""
        try:
            job_id = str(int(environ["SLURM_JOB_ID"]))
            array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
            if array and task:
                job_id = f"{int(array)}_{int(task)}"
            end = environ.get("SLURM_JOB_END_TIME")
            restarts = int(environ.get("SLURM_RESTART_COUNT") or 0)
            return cls(job_id, restarts, float(int(end)) if end else None)
        except (KeyError, ValueError):
            return None

    def ask_end_time(self) -> float | None:
        """Return when Slurm ends the job; asks the controller if no variable has it. None if there is no limit."""
        if self.end_time is not None:
            return self.end_time
        command = ["squeue", "--noheader", f"--jobs={self.job_id}", "--format=%e"]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=True).stdout
            return datetime.fromisoformat(said.strip()).timestamp()
        except (OSError, subprocess.SubprocessError, ValueError):
            return None

    def requeue(self) -> str | None:
        """Requeue the job, which ends all its processes. Return the reason if that failed, else None."""
        command = ["scontrol", "requeue", self.job_id]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return (
            None
            if done.returncode == 0
            else " ".join(done.stderr.split()) or f"it exited with {done.returncode}"
        )
