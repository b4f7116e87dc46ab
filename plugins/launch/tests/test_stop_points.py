"""Where a loop of your own ends: by its time limit or a Slurm job's end, after it has saved."""

from __future__ import annotations

import time
from typing import Any

import pytest
from stratagem_launch import Preempted, stopping

import stratagem


def stops(runtime: Any, calls: list[str], how: dict[str, Any]) -> str:
    with stopping(runtime, stop_signals="", **how) as stop:
        try:
            stop.exit_if_due(lambda: calls.append("saved"))
        except Preempted as stopped:
            return stopped.reason
    return ""


@pytest.mark.parametrize(
    ("job_ends_in_s", "how", "reason"),
    [
        (None, {"time_limit_s": 20.0, "grace_period_s": 30.0}, "the time limit"),
        (None, {"time_limit_s": 3600.0, "grace_period_s": 30.0}, ""),
        (None, {"time_limit_s": 3600.0, "grace_period_s": 3700.0}, "the time limit"),
        (None, {}, ""),
        (10, {"grace_period_s": 30.0}, "the end of the job"),
        (3600, {"time_limit_s": 20.0, "grace_period_s": 30.0}, "the time limit"),
        (3600, {}, ""),
    ],
)
def test_a_limit_ends_a_loop_a_grace_period_before(
    monkeypatch: pytest.MonkeyPatch, job_ends_in_s: int | None, how: dict[str, Any], reason: str
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job_ends_in_s is not None:
        monkeypatch.setenv("SLURM_JOB_ID", "12")
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + job_ends_in_s))
    calls: list[str] = []
    runtime = stratagem.Runtime("single", "cpu", environment="single")
    assert runtime.launch(stops, calls, how, quiet=True) == reason
    assert calls == ["saved"] * bool(reason)
