"""Checks for every place."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratagem.errors import UsageError
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.parts.subject import PlaceSubject

if TYPE_CHECKING:
    from stratagem_places import Place, PlacedRun, PlaceRequest, PlaceStatus

SOON_S = 60.0
"""Time limit for a run of a few lines."""


def _made(subject: PlaceSubject) -> Place:
    place: Place = subject.load()(**subject.options)
    return place


def _request(subject: PlaceSubject, **changes: Any) -> PlaceRequest:
    from stratagem_places import PlaceRequest

    settings: dict[str, Any] = {
        "stage": "run",
        "words": ("program.py", "--name", 'it\'s "quoted" $HOME'),
        "takes_run_dir": False,
        "run_dir": f"{subject.folder}/run",
        "code_dir": subject.folder,
    }
    return PlaceRequest(**{**settings, **changes})


@check(world_sizes=(1,))
def check_made(subject: PlaceSubject) -> None:
    """It is a Place whose options have defaults and annotations. `why_not` gives a reason if it can't submit here."""
    from stratagem_places import Place

    cls: Any = subject.load()
    place = _made(subject)
    expect(isinstance(place, Place), f"it is a {type(place).__name__}, not a Place")
    for name, option in inspect.signature(cls).parameters.items():
        expect(option.default is not option.empty, f"its option {name} has no default")
        expect(
            option.annotation is not option.empty,
            f"its option {name} has no annotation to check values against",
        )
    reason = place.why_not()
    expect(reason is None or len(reason.split()) > 2, f"why_not() is {reason!r}, which is not a reason")


@check(world_sizes=(1,))
def check_renders(subject: PlaceSubject) -> None:
    """The script is the same each time, contains the command and its variables, and rendering writes no files."""
    place, request = _made(subject), _request(subject)
    before = sorted(Path(subject.folder).rglob("*"))
    try:
        script = place.render(request)
    except UsageError as error:
        raise NotApplicable(f"it needs options to render a script: {error}") from None
    expect(
        isinstance(script, str) and script == place.render(request), "two renderings of one request differ"
    )
    expect(sorted(Path(subject.folder).rglob("*")) == before, "rendering writes files")
    expect("program.py" in script, "the command isn't in the script")
    for name in request.variables:
        expect(name in script, f"the variable {name}, which nodes need, isn't in the script")


@check(world_sizes=(1,))
def check_refuses_nodes(subject: PlaceSubject) -> None:
    """A number of nodes, fixed or elastic, is in the script or refused with a reason."""
    place = _made(subject)
    for changes in ({"min_nodes": 3, "max_nodes": 3}, {"min_nodes": 1, "max_nodes": 3}):
        try:
            script = place.render(_request(subject, **changes))
        except UsageError as error:
            expect(len(str(error).split()) > 3, f"{changes} is refused without a reason: {error}")
        else:
            expect("3" in script, f"{changes} isn't in the script, but isn't refused")


@check(world_sizes=(1,))
def check_imports_no_torch(subject: PlaceSubject) -> None:
    """Its module doesn't import torch, so that submitting takes milliseconds."""
    cls: Any = subject.load()
    module = cls.__module__
    program = f"import sys, {module}; print('torch' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    expect(done.returncode == 0, f"importing {module} fails: {done.stderr.strip()[-300:]}")
    expect(done.stdout.split()[-1] == "False", f"importing {module} imports torch")


@check(world_sizes=(1,))
def check_runs_and_stops(subject: PlaceSubject) -> None:
    """If it can submit here, another process reads a run's output and exit code, and a stopped run ends."""
    if reason := _made(subject).why_not():
        raise NotApplicable(f"nothing can be submitted from here: {reason}")
    ended = _submitted(subject, "ends", "print('printed there')\nraise SystemExit(3)\n")
    status = _end(subject, ended)
    expect(status.state == "failed" and status.exit_code == 3, f"a command that exits with 3 is {status}")
    printed = "".join(_made(subject).logs(ended))
    expect("printed there" in printed, f"the command's output is read as {printed!r}")
    stopped = _submitted(
        subject, "stops", "import pathlib, time\npathlib.Path('began').touch()\ntime.sleep(600)\n"
    )
    began, deadline = Path(subject.folder, "stops", "began"), time.monotonic() + SOON_S
    while not began.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    expect(began.exists(), f"the command hasn't started after {SOON_S:.0f} s")
    expect(not _made(subject).status(stopped).is_over, "a running run is reported as over")
    _made(subject).stop(stopped)
    status = _end(subject, stopped)
    expect(status.state in ("stopped", "unknown"), f"a stopped run is {status}")


def _submitted(subject: PlaceSubject, name: str, program: str) -> PlacedRun:
    from stratagem_places import PlacedRun

    code, run = Path(subject.folder, name), Path(subject.folder, f"run-{name}")
    code.mkdir()
    (code / "program.py").write_text(program)
    (run / "place" / "output").mkdir(parents=True)
    request = _request(subject, words=("program.py",), run_dir=str(run), code_dir=str(code))
    job = _made(subject).submit(request)
    return PlacedRun(run_dir=str(run), place=subject.name, options=subject.options, job=job)


def _end(subject: PlaceSubject, run: PlacedRun) -> PlaceStatus:
    """Wait for a run's end, with new place objects that only have the run's record."""
    deadline = time.monotonic() + SOON_S
    while not (status := _made(subject).status(run)).is_over:
        expect(time.monotonic() < deadline, f"a run of a few lines is {status.state!r} after {SOON_S:.0f} s")
        time.sleep(0.1)
    return status
