"""How a job is, as Slurm and the job's own folder tell."""

from __future__ import annotations

import os
from contextlib import suppress

from stratagem_places import PlacedRun, PlaceStatus, state_of

from stratagem.errors import UsageError
from stratagem_slurm.commands import said

_RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")


def job_status(run: PlacedRun, job_id: str) -> PlaceStatus:
    """Ask squeue, then the exit code that the job has left, then sacct and scontrol.

    Raises:
        UsageError: squeue isn't here, or the controller doesn't answer.
    """
    code = _exit_code(run)
    queued = said("squeue", "--noheader", "--array", f"--jobs={job_id}", "--format=%T|%r|%N", aged_out=True)
    tasks = [line.split("|") for line in queued.splitlines() if line.count("|") == 2]
    for state, _, nodes in tasks:
        if state in _RUNNING:
            return PlaceStatus("running", f"{state} on {nodes}" if nodes else state)
    waiting = [
        (state, reason) for state, reason, _ in tasks if state in ("PENDING", "REQUEUED", "SPECIAL_EXIT")
    ]
    if waiting and code != 0:
        return PlaceStatus("waiting", f"{waiting[0][0]} ({waiting[0][1]})")
    if code is not None:
        return PlaceStatus(state_of(code), f"exit code {code}" if code else "", code)
    last = _last_state(job_id)
    if last is None:
        return PlaceStatus("unknown", f"Slurm knows job {job_id} no more")
    if last == "COMPLETED":
        return PlaceStatus("finished", exit_code=0)
    return PlaceStatus("stopped" if last in ("CANCELLED", "PREEMPTED") else "failed", last)


def _last_state(job_id: str) -> str | None:
    """The state in which a job ended: the accounting's, or the controller's for some minutes."""
    with suppress(UsageError):  # clusters without accounting refuse
        format_ = ("--noheader", "--allocations", "--parsable2", "--format=State")
        states = said("sacct", *format_, f"--jobs={job_id}").splitlines()
        if states:
            return states[-1].split()[0]  # as "CANCELLED by 1000"
    words = said("scontrol", "show", "job", job_id, aged_out=True).split()
    states = [word.partition("=")[2] for word in words if word.startswith("JobState=")]
    return states[-1] if states else None


def _exit_code(run: PlacedRun) -> int | None:
    try:
        with open(os.path.join(run.run_dir, "place", "exit_code"), encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
