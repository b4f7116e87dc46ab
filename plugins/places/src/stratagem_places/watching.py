"""Following a run from the terminal that submitted it."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stratagem_places.place import Place
    from stratagem_places.run_record import PlacedRun

_STOPPED = 75
"""Exit code of a run that was asked to stop, where the place knows none."""


def watch(place: Place, run: PlacedRun, rank: int | None = None) -> int:
    """Print what a run prints until it is over, and return its exit code. Ctrl-C ends the watching alone."""
    folder = shlex.quote(os.path.relpath(run.run_dir))
    try:
        for chunk in place.logs(run, rank, follow=True):
            click.echo(chunk, nl=False)
    except KeyboardInterrupt:
        click.echo(
            f"\nthe run continues: stratagem logs {folder} --follow, or stratagem stop {folder}", err=True
        )
        return 130
    status = place.status(run)
    if status.state == "finished":
        return 0
    if status.detail or status.state == "unknown":
        click.echo(f"{run.name}: {status.state}{f', {status.detail}' if status.detail else ''}", err=True)
    return status.exit_code or (_STOPPED if status.state == "stopped" else 1)
