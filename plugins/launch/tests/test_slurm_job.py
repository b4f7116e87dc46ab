"""The Slurm job around a process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from stratagem_launch import SlurmJob


def test_a_job_is_read_from_its_variables() -> None:
    job = SlurmJob.of({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "2", "SLURM_JOB_END_TIME": "1700000000"})
    assert job == SlurmJob("12", 2, 1.7e9)
    assert SlurmJob.of(
        {"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    ) == SlurmJob("12_3")


@pytest.mark.parametrize(
    "environ", [{}, {"SLURM_JOB_ID": "x"}, {"SLURM_JOB_ID": "1", "SLURM_JOB_END_TIME": "soon"}]
)
def test_no_job_or_one_that_cannot_be_read(environ: dict[str, str]) -> None:
    assert SlurmJob.of(environ) is None


def test_an_older_slurm_is_asked_when_the_job_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SlurmJob("12", end_time=5.0).ask_end_time() == 5.0
    monkeypatch.setenv("PATH", str(tmp_path))
    assert SlurmJob("12").ask_end_time() is None
    stands_for_slurm = tmp_path / "squeue"
    for said, meant in (("2026-11-22T21:56:51", 1795384611.0), ("N/A", None)):
        stands_for_slurm.write_text(f"#!/bin/sh\necho {said}\n")
        stands_for_slurm.chmod(0o755)
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
        assert SlurmJob("12").ask_end_time() == meant


def test_why_a_job_is_not_requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "scontrol" in (SlurmJob("12").requeue() or "")
    stands_for_slurm = tmp_path / "scontrol"
    stands_for_slurm.write_text('#!/bin/sh\necho "$@ refused" >&2\nexit 1\n')
    stands_for_slurm.chmod(0o755)
    assert SlurmJob("12").requeue() == "requeue 12 refused"
