"""Flags for runs that are asked to stop, or hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import cloup

F = TypeVar("F", bound=Callable[..., Any])

STOPPING = cloup.OptionGroup("Stopping and hangs")
STOP_FLAGS = ("time_limit", "grace_period_s", "stop_signals", "requeue", "step_timeout_s")
"""The trainer's settings that these flags set."""


def stop_flags(command: F) -> F:
    """Add those of a fit to a command."""
    for decorate in (
        cloup.option(
            "--step-timeout",
            "step_timeout_s",
            group=STOPPING,
            type=float,
            metavar="S",
            help="End a fit in which a rank makes no step for so long, and name it.",
        ),
        cloup.option(
            "--requeue/--no-requeue",
            group=STOPPING,
            default=None,
            help="Whether the Slurm job around the run requeues itself then.",
        ),
    ):
        command = decorate(command)
    return evaluation_stop_flags(command)


def evaluation_stop_flags(command: F) -> F:
    """Add those that all stages share to a command."""
    for decorate in (
        cloup.option(
            "--stop-signals",
            group=STOPPING,
            metavar="NAMES",
            help="Signals on which to save and end; SIGTERM,SIGUSR1,SIGUSR2 if not given.",
        ),
        cloup.option(
            "--grace-period",
            "grace_period_s",
            group=STOPPING,
            type=float,
            metavar="S",
            help="What a save may take.",
        ),
        cloup.option(
            "--time-limit",
            group=STOPPING,
            metavar="TIME",
            help="Save and end in time: seconds, or HH:MM:SS.",
        ),
    ):
        command = decorate(command)
    return command
