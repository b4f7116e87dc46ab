"""Conditions that stop a run, for the trainer's stages and for your own training loops."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from stratagem_launch.preemption import (
    STOP_SIGNALS,
    Preempted,
    PreemptionWatch,
    StopConditions,
    check_stop_signals,
)
from stratagem_launch.slurm_job import SlurmJob
from stratagem_launch.torch_private import loader_workers_outlast

if TYPE_CHECKING:
    from stratagem import Runtime

TIME_LIMIT, JOB_END = "the time limit", "the end of the job"


@contextmanager
def preemption_watch(
    runtime: Runtime, signals: str | Sequence[str], grace_period_s: float, time_limit_at: float | None
) -> Iterator[PreemptionWatch]:
    """Watch for signals and limits, in this process and for its loaders' workers. Collective.

    Args:
        runtime: the live runtime.
        signals: see `check_stop_signals`.
        grace_period_s: how long before a limit the run stops.
        time_limit_at: when the run must be over, in seconds since the epoch. Rank 0's value counts.

    Raises:
        ConfigError: a signal isn't allowed.
    """
    own = _conditions(signals, grace_period_s, time_limit_at) if runtime.is_main else None
    conditions = runtime.broadcast(own)
    with ExitStack() as stack:
        if "SIGTERM" in conditions.signals:
            stack.enter_context(loader_workers_outlast(conditions.grace_period_s))
        yield stack.enter_context(PreemptionWatch(runtime.collectives, conditions))


def _conditions(
    signals: str | Sequence[str], grace_period_s: float, time_limit_at: float | None
) -> StopConditions:
    """Return what stops a run. Call it on one rank only, since it may ask the scheduler."""
    limits = {} if time_limit_at is None else {TIME_LIMIT: time_limit_at}
    job = SlurmJob.of(os.environ)
    job_end = None if job is None else job.ask_end_time()
    if job_end is not None:
        limits[JOB_END] = job_end
    return StopConditions(check_stop_signals(signals), grace_period_s, limits)


class StopPoint:
    """A point where your own training loop may end. `stopping` yields it.

    Args:
        runtime: the live runtime.
        watch: an open watch.
    """

    def __init__(self, runtime: Runtime, watch: PreemptionWatch) -> None:
        self._runtime, self._watch = runtime, watch

    def exit_if_due(self, save: Callable[[], object] | None = None) -> None:
        """End the run here if it must stop. Collective; all ranks call it equally often.

        Args:
            save: saves the state of the run. It is called on all ranks, so it may be collective, like `Runtime.save`.

        Raises:
            Preempted: the run stops, and everything saved is on the disk. If no code catches the error, the process
                exits with 75.
        """
        if not self._watch.is_due():
            return
        reason = self._watch.reason or ""
        if self._runtime.is_main:
            say("stopping", f"by {reason}")
        if save is not None:
            save()
            self._runtime.session.checkpointer.wait()
        self._runtime.barrier("stopping")
        raise Preempted(reason, rank=self._runtime.rank)


@contextmanager
def stopping(
    runtime: Runtime,
    *,
    time_limit_s: float | None = None,
    stop_signals: str | Sequence[str] = STOP_SIGNALS,
    grace_period_s: float = 30.0,
) -> Iterator[StopPoint]:
    """Watch for conditions that stop your own training loop: signals, a limit, the end of a Slurm job. Collective.

    A signal may reach any rank or the launching process. Handlers that the program has set itself are kept.

    Args:
        runtime: the live runtime.
        time_limit_s: how long after this call the run must be over.
        stop_signals: names, such as "SIGTERM,SIGUSR1"; "" for none.
        grace_period_s: how long a save may take: the loop ends this long before a limit.

    Raises:
        ConfigError: a signal isn't allowed.
    """
    end = None if time_limit_s is None else time.time() + time_limit_s
    with preemption_watch(runtime, stop_signals, grace_period_s, end) as watch:
        yield StopPoint(runtime, watch)


def say(what: str, line: str) -> None:
    """Print one line about a stop to standard error."""
    print(f"  {what:<12}{line}", file=sys.stderr, flush=True)
