"""Commands of Slurm's."""

from __future__ import annotations

import subprocess

from stratagem.errors import UsageError

_WAIT_S = 60.0
"""How long the controller may take to answer."""


def said(*command: str, aged_out: bool = False) -> str:
    """Return what a command of Slurm's prints.

    Args:
        command: with its arguments.
        aged_out: whether the job may be over for so long that Slurm knows it no more; nothing is said of it then.

    Raises:
        UsageError: it isn't there, or refuses; with its words.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]} can't be asked: {error}") from error
    if done.returncode and not (aged_out and "Invalid job id" in done.stderr):
        raise UsageError(f"{command[0]} refuses: {' '.join(done.stderr.split()) or done.returncode}")
    return done.stdout
