"""`stratagem runs | logs | stop`: runs that are somewhere else."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import click
from stratagem_cli.listing import as_json, print_json, print_table

from stratagem.errors import ConfigError, UsageError, nearest
from stratagem_places.place import Place, PlaceStatus
from stratagem_places.run_record import RECORD, PlacedRun

FOLDER = "runs"
"""Where runs are looked for, as `fit` puts them there."""


@click.command()
@click.argument("folders", nargs=-1, metavar="[FOLDER…]")
@as_json
def runs(folders: Sequence[str], as_json: bool) -> None:
    """List the runs in FOLDER (runs, if not given) that were submitted by --on, and how they are."""
    records = [record for folder in folders or (FOLDER,) for record in _records_in(folder)]
    if as_json:
        print_json(records)
        return
    rows = [
        [str(record[key]) for key in ("run", "place", "state", "detail", "submitted_at")]
        for record in records
    ]
    print_table(["run", "place", "state", "detail", "submitted"], rows)


@click.command()
@click.argument("run")
@click.option("--rank", type=click.IntRange(0), help="Only what this rank printed.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run is over; the exit code is its.")
def logs(run: str, rank: int | None, follow: bool) -> None:
    """Print what RUN, its folder or its name in runs, has printed."""
    from stratagem_places.watching import watch

    found = find_run(run)
    place = place_of(found)
    if follow:
        click.get_current_context().exit(watch(place, found, rank))
    for chunk in place.logs(found, rank):
        click.echo(chunk, nl=False)


@click.command()
@click.argument("run")
def stop(run: str) -> None:
    """Let RUN, its folder or its name in runs, save and end."""
    found = find_run(run)
    place = place_of(found)
    status = place.status(found)
    if status.is_over:
        click.echo(f"{found.name} is over: {_said(status)}")
        return
    place.stop(found)
    click.echo(
        f"{found.name} was asked to stop; stratagem logs {shlex.quote(run)} --follow shows how it ends"
    )


def runs_in(folder: str) -> list[PlacedRun]:
    """Return the submitted runs in a folder, or of it, in the order of their names.

    Raises:
        ConfigError: it isn't there, or a record can't be used.
    """
    return [PlacedRun.read(path) for path in _run_dirs(folder)]


def find_run(run: str) -> PlacedRun:
    """Find a submitted run by its folder, or by its name in `FOLDER`.

    Raises:
        ConfigError: there is none.
    """
    for path in (run, os.path.join(FOLDER, run)):
        if os.path.exists(os.path.join(path, RECORD)):
            return PlacedRun.read(path)
    known = [os.path.basename(path) for path in _run_dirs(FOLDER)] if os.path.isdir(FOLDER) else []
    raise ConfigError(f"RUN {run!r} is no folder of a run that was submitted by --on; {nearest(run, known)}")


def place_of(run: PlacedRun) -> Place:
    """Make the place that a run was submitted to, with its options.

    Raises:
        UsageError: it isn't installed any more, or no longer takes them.
    """
    from stratagem_places.named import make

    return make(run.place, run.options).place


def _run_dirs(folder: str) -> list[str]:
    if os.path.lexists(os.path.join(folder, RECORD)):
        return [folder]
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        raise ConfigError(f"there is no folder {folder!r}: name the one that holds your runs") from None
    paths = [os.path.join(folder, name) for name in names]
    return [path for path in paths if os.path.lexists(os.path.join(path, RECORD))]


def _records_in(folder: str) -> Iterator[dict[str, Any]]:
    """Describe each run; one whose record can't be used is described by the reason, and not asked for."""
    for path in _run_dirs(folder):
        try:
            yield _record(PlacedRun.read(path))
        except ConfigError as error:
            if path == folder:
                raise
            run = PlacedRun(run_dir=os.path.abspath(path), place="")
            yield {**_described(run), "state": "unknown", "detail": str(error), "exit_code": None}


def _record(run: PlacedRun) -> dict[str, Any]:
    try:
        status = place_of(run).status(run)
    except UsageError as error:
        status = PlaceStatus("unknown", str(error))
    return {
        **_described(run),
        "state": status.state,
        "detail": status.detail,
        "exit_code": status.exit_code,
    }


def _described(run: PlacedRun) -> dict[str, Any]:
    return {
        "run": os.path.relpath(run.run_dir),
        "place": run.place,
        "submitted_at": run.submitted_at,
        "job": dict(run.job),
        "command": list(run.command),
    }


def _said(status: PlaceStatus) -> str:
    return f"{status.state}{f', {status.detail}' if status.detail else ''}"
