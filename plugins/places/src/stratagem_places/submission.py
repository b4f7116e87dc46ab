"""`submit`: what `--on` does."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from stratagem.errors import ConfigError, UsageError
from stratagem_places.named import ChosenPlace, choose, make
from stratagem_places.request import PlaceRequest
from stratagem_places.run_record import RECORD, PlacedRun
from stratagem_places.snapshot import source_of, take_snapshot
from stratagem_places.watching import watch

if TYPE_CHECKING:
    from stratagem_cli.placed import Placement


def submit(placement: Placement) -> int:
    """Submit a command, or print what would be submitted; follow it to its end unless it is detached.

    Returns:
        The exit code: 0 once it is printed or submitted, else that of the run.

    Raises:
        UsageError: the place, an option or the request can't be met; nothing has been left behind then.
    """
    chosen = choose(placement.on, placement.sets)
    request = _request(placement)
    if placement.dry_run:
        click.echo(chosen.place.render(request), nl=False)
        return 0
    reason = chosen.place.why_not()
    if reason is not None:
        raise UsageError(
            f"--on {placement.on} can't be used here: {reason}; --dry-run prints what it would submit"
        )
    chosen.place.render(request)  # refuses what can't be met before anything is written
    run = _submitted(placement, chosen, request)
    folder = os.path.relpath(run.run_dir)
    click.echo(f"submitted   {', '.join(f'{key} {value}' for key, value in run.job.items())}")
    click.echo(f"run folder  {folder}")
    if placement.detach:
        click.echo(f"follow it   stratagem logs {shlex.quote(folder)} --follow")
        return 0
    return watch(chosen.place, run)


def _request(placement: Placement) -> PlaceRequest:
    from stratagem.sdk.selection import count_of

    selection = placement.selection
    nodes = [int(number) for number in str(selection.get("num_nodes", 1)).split(":")]
    run_dir = _run_dir(placement)
    _, subfolder = source_of(os.getcwd())
    return PlaceRequest(
        stage=placement.stage,
        words=placement.words,
        run_dir=run_dir,
        takes_run_dir=placement.takes_run_dir,
        code_dir=os.path.join(run_dir, "place", "code"),
        subfolder=subfolder,
        min_nodes=nodes[0],
        max_nodes=nodes[-1],
        devices=count_of(selection.get("devices", "auto")),
        accelerator=selection.get("accelerator", "auto"),
        max_restarts=selection.get("max_restarts", 0),
        grace_period_s=placement.grace_period_s,
    )


def _run_dir(placement: Placement) -> str:
    """The folder that was asked for, or a new one in `runs`, as of a run here."""
    import yaml

    given = placement.selection.get("run_dir")
    if given is not None:
        return os.path.abspath(str(given))
    config: dict[str, object] = yaml.safe_load(placement.config)
    target = str(config.get("target") or config.get("script"))
    name = os.path.splitext(os.path.basename(target.rpartition(":")[2]))[0]
    base = os.path.abspath(os.path.join("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"))
    numbered = (f"{base}-{n}" if n else base for n in count())
    return next(filter(lambda path: not os.path.lexists(path), numbered))


def _submitted(placement: Placement, chosen: ChosenPlace, request: PlaceRequest) -> PlacedRun:
    _refuse_running(request)
    made = not os.path.exists(request.run_dir)
    if os.path.lexists(request.code_dir):
        shutil.rmtree(request.code_dir)
    try:
        os.makedirs(request.output_dir, exist_ok=True)
        take_snapshot(source_of(os.getcwd())[0], request.code_dir)
        with open(os.path.join(request.place_dir, "config.yaml"), "w", encoding="utf-8") as file:
            file.write(placement.config)
        job: Any = chosen.place.submit(request)
    except BaseException as error:
        shutil.rmtree(request.run_dir if made else request.code_dir, ignore_errors=True)
        if made:
            with suppress(OSError):
                os.rmdir(os.path.dirname(request.run_dir))
        if isinstance(error, OSError):
            raise ConfigError(f"the run's folder {request.run_dir!r} can't be written: {error}") from error
        raise
    run = PlacedRun(
        run_dir=request.run_dir,
        place=chosen.component,
        options=chosen.options,
        job=dict(job),
        command=(placement.stage, *placement.words),
        submitted_at=datetime.now().astimezone().isoformat(timespec="seconds"),
    )
    run.write()
    return run


def _refuse_running(request: PlaceRequest) -> None:
    if not os.path.exists(os.path.join(request.run_dir, RECORD)):
        return
    earlier = PlacedRun.read(request.run_dir)
    status = make(earlier.place, earlier.options).place.status(earlier)
    if not status.is_over:
        raise ConfigError(
            f"the run in {request.run_dir!r} is {status.state} on {earlier.place}: stop it first, or "
            "name another --run-dir"
        )
