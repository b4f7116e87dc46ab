"""Flags for runs that must stop at a signal or a time limit, or that hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import cloup

F = TypeVar("F", bound=Callable[..., Any])

STOPPING = cloup.OptionGroup("Stopping and hangs")
STOP_FLAGS = ("time_limit", "grace_period_s", "stop_signals", "requeue", "step_timeout_s")
"""Settings of the trainer that these flags set."""


def stop_flags(command: F) -> F:
    """Add the flags of a fit to a command."""
    for decorate in (
        cloup.option(
            "--step-timeout",
            "step_timeout_s",
            group=STOPPING,
            type=float,
            metavar="S",
            help="End a fit in which a rank makes no step for this many seconds, and name the rank.",
        ),
        cloup.option(
            "--requeue/--no-requeue",
            group=STOPPING,
            default=None,
            help="Whether to requeue the Slurm job of the run after such a stop.",
        ),
    ):
        command = decorate(command)
    return evaluation_stop_flags(command)


def evaluation_stop_flags(command: F) -> F:
    """Add the flags that all stages have to a command."""
    for decorate in (
        cloup.option(
            "--stop-signals",
            group=STOPPING,
            metavar="NAMES",
            help="Signals at which to save and stop; SIGTERM,SIGUSR1,SIGUSR2 by default.",
        ),
        cloup.option(
            "--grace-period",
            "grace_period_s",
            group=STOPPING,
            type=float,
            metavar="S",
            help="Time that a save may take.",
        ),
        cloup.option(
            "--time-limit",
            group=STOPPING,
            metavar="TIME",
            help="Save and stop in time for this limit: seconds, or HH:MM:SS.",
        ),
    ):
        command = decorate(command)
    return command
