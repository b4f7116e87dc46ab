"""`stratagem runs | logs | stop`: fits on this machine, and runs that are somewhere else."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import click
from stratagem_cli.listing import as_json, print_json, print_table

from stratagem.errors import ConfigError, UsageError, nearest
from stratagem_places.fit_folder import FitFolder, compared, in_words
from stratagem_places.place import Place, PlaceStatus
from stratagem_places.run_record import RECORD, PlacedRun

FOLDER = "runs"
"""Where runs are looked for, as `fit` puts them there."""


@click.command(
    epilog="\b\nExamples:\n  stratagem runs\n  stratagem runs --compare runs/one runs/two",
)
@click.argument("folders", nargs=-1, metavar="[FOLDER…]")
@click.option("--compare", is_flag=True, help="Print settings that differ, and metrics, side by side.")
@as_json
def runs(folders: Sequence[str], compare: bool, as_json: bool) -> None:
    """List the runs in FOLDER (runs, if not given): fits on this machine, and what was submitted by --on."""
    if compare:
        _compare(folders, as_json)
        return
    records = [record for folder in folders or (FOLDER,) for record in _records_in(folder)]
    if as_json:
        print_json(records)
        return
    rows = [
        [
            record["run"],
            record["place"],
            record["state"],
            "" if record["step"] is None else f"{record['step']:,.0f}",
            record["detail"] or in_words(record["metrics"]),
            record["submitted_at"],
        ]
        for record in records
    ]
    print_table(["run", "place", "state", "step", "detail", "submitted or written"], rows)


def _compare(folders: Sequence[str], as_json: bool) -> None:
    if len(folders) < 2:
        raise ConfigError(f"--compare needs two runs or more, and got {len(folders)}: name their folders")
    wrong = [folder for folder in folders if not FitFolder.is_one(folder)]
    if wrong:
        raise ConfigError(f"{wrong[0]} is no folder of a fit: name folders such as runs/NAME")
    found = {folder: FitFolder(folder) for folder in folders}
    if as_json:
        print_json({name: {"settings": f.settings(), "metrics": f.metrics()} for name, f in found.items()})
    else:
        print_table(["", *found], compared(found))


@click.command(
    epilog="\b\nExamples:\n  stratagem logs NAME",
)
@click.argument("run")
@click.option(
    "--rank", type=click.IntRange(0), help="What this rank printed; of a fit with --log-dir, 0 by default."
)
@click.option("--follow", "-f", is_flag=True, help="Go on until the run is over; the exit code is its.")
def logs(run: str, rank: int | None, follow: bool) -> None:
    """Print what RUN, its folder or its name in runs, has printed."""
    from stratagem_places.reading import run_output
    from stratagem_places.watching import watch

    fit = _fit_folder(run)
    if fit is not None:
        is_over = (lambda: fit.state != "running") if follow else None
        for chunk in run_output(fit.output(), rank or 0, is_over):
            click.echo(chunk, nl=False)
        return
    found = find_run(run)
    place = place_of(found)
    if follow:
        click.get_current_context().exit(watch(place, found, rank))
    for chunk in place.logs(found, rank):
        click.echo(chunk, nl=False)


@click.command(
    epilog="\b\nExamples:\n  stratagem stop NAME",
)
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
    return [PlacedRun.read(path) for path in _run_dirs(folder) if _was_submitted(path)]


def find_run(run: str) -> PlacedRun:
    """Find a submitted run by its folder, or by its name in `FOLDER`.

    Raises:
        ConfigError: there is none.
    """
    if _fit_folder(run) is not None:
        raise ConfigError(
            f"RUN {run!r} wasn't submitted by --on: Ctrl-C in its terminal, or SIGTERM, stops it"
        )
    for path in (run, os.path.join(FOLDER, run)):
        if os.path.exists(os.path.join(path, RECORD)):
            return PlacedRun.read(path)
    paths = _run_dirs(FOLDER) if os.path.isdir(FOLDER) else []
    known = [os.path.basename(path) for path in paths if _was_submitted(path)]
    raise ConfigError(f"RUN {run!r} is no folder of a run that was submitted by --on; {nearest(run, known)}")


def _fit_folder(run: str) -> FitFolder | None:
    """Return the folder of a fit on this machine; None where a run by that name was submitted, or there is none."""
    for path in (run, os.path.join(FOLDER, run)):
        if os.path.exists(os.path.join(path, RECORD)):
            return None
        if FitFolder.is_one(path):
            return FitFolder(path)
    return None


def place_of(run: PlacedRun) -> Place:
    """Make the place that a run was submitted to, with its options.

    Raises:
        UsageError: it isn't installed any more, or no longer takes them.
    """
    from stratagem_places.named import make

    return make(run.place, run.options).place


def _run_dirs(folder: str) -> list[str]:
    if _is_run(folder):
        return [folder]
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        raise ConfigError(f"there is no folder {folder!r}: name the one that holds your runs") from None
    paths = [os.path.join(folder, name) for name in names]
    return [path for path in paths if _is_run(path)]


def _is_run(path: str) -> bool:
    return _was_submitted(path) or FitFolder.is_one(path)


def _was_submitted(path: str) -> bool:
    return os.path.lexists(os.path.join(path, RECORD))


def _records_in(folder: str) -> Iterator[dict[str, Any]]:
    """Describe each run; one whose record can't be used is described by the reason, and not asked for."""
    for path in _run_dirs(folder):
        if not _was_submitted(path):
            yield _record_of_fit(FitFolder(path))
            continue
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


def _record_of_fit(fit: FitFolder) -> dict[str, Any]:
    try:
        metrics, detail = fit.metrics(), ""
    except ConfigError as error:
        metrics, detail = {}, str(error)
    described = _described(PlacedRun(run_dir=os.path.abspath(fit.path), place=""))
    return {
        **described,
        "submitted_at": fit.changed_at,
        "state": fit.state,
        "detail": detail,
        "exit_code": None,
        "step": metrics.get("step"),
        "metrics": metrics,
    }


def _described(run: PlacedRun) -> dict[str, Any]:
    return {
        "run": os.path.relpath(run.run_dir),
        "place": run.place,
        "submitted_at": run.submitted_at,
        "job": dict(run.job),
        "command": list(run.command),
        "step": None,
        "metrics": {},
    }


def _said(status: PlaceStatus) -> str:
    return f"{status.state}{f', {status.detail}' if status.detail else ''}"
