"""What a run's folder says is checked before it becomes an argument of a program or the target of a signal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stratagem_cli.main import main
from stratagem_places import PlacedRun, PlaceRequest, is_process, started_at
from stratagem_places.local import LocalPlace

from stratagem.errors import ConfigError

Refused = Callable[..., str]


def record(folder: Path, content: Any = None, **fields: Any) -> Path:
    """Write the record of a run, as if it had been submitted."""
    (folder / "place/output").mkdir(parents=True)
    whole = {
        "format": 1,
        "place": "local",
        "options": {},
        "job": {"process": 2**22 + 1, "started": "never"},
        "command": ["fit", "net.py:Net"],
        "submitted_at": "2026-01-01T00:00:00+00:00",
    }
    text = json.dumps({**whole, **fields} if content is None else content)
    (folder / "place/record.json").write_text(text)
    return folder


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no run has started."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake kubectl, scancel and squeue; returns the file with what they were called with."""
    called = tmp_path / "called"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("kubectl", "squeue", "scancel", "sacct", "scontrol"):
        (programs / name).write_text(f'#!/bin/sh\necho "$0" "$@" >> {called}\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return called


def test_fields_of_other_types_are_refused_and_reach_no_program(
    folder: Path, kubectl: Path, refused: Refused
) -> None:
    option = "--kubeconfig=/tmp/evil"
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "kubernetes-name": ({"place": "kubernetes", "job": {"name": option, "nodes": 1}}, "name='--kubec"),
        "kubernetes-list": ({"place": "kubernetes", "job": {"name": [option], "nodes": 1}}, "name=['--kub"),
        "kubernetes-context": (
            {"place": "kubernetes", "options": {"context": option}, "job": {"name": "a", "nodes": 1}},
            "context='--kubeconfig",
        ),
        "kubernetes-namespace": (
            {"place": "kubernetes", "options": {"namespace": option}, "job": {"name": "a", "nodes": 1}},
            "namespace='--kubeconfig",
        ),
        "slurm": ({"place": "slurm", "job": {"job_id": "12 --ctld"}}, "job_id='12 --ctld'"),
        "slurm-none": ({"place": "slurm", "job": {}}, "job_id=None"),
        "negative": ({"job": {"process": -1, "started": ""}}, "process=-1"),
        "truth": ({"job": {"process": True, "started": ""}}, "process=True"),
        "ray": ({"place": "ray", "job": {"process": -7, "started": ""}}, "process=-7"),
        "options": ({"options": [1]}, "options is [1]"),
        "job": ({"job": "12"}, "job is '12'"),
        "command": ({"command": "fit"}, "command is 'fit'"),
        "words": ({"command": [1]}, "command must be a list of texts"),
        "place": ({"place": {}}, "place is {}"),
        "terminal": ({"submitted_at": "\x1b[2J"}, "can't be printed"),
        "field": ({"run_dir": "/"}, "unexpected field 'run_dir'"),
        "version": ({"format": 99}, "another version"),
        "list": ({"content": [1]}, "must hold one JSON object"),
    }
    for name, (fields, sentence) in cases.items():
        record(folder / "runs" / name, **fields)
        assert sentence in refused("stop", name), name
    (folder / "runs/deep/place").mkdir(parents=True)
    (folder / "runs/deep/place/record.json").write_text("[" * 100_000)
    assert "can't be read" in refused("stop", "deep")
    (folder / "runs/fifo/place").mkdir(parents=True)
    os.mkfifo(folder / "runs/fifo/place/record.json")
    assert "no regular file" in refused("stop", "fifo")
    assert main(("runs", "--json")) == 0
    assert not kubectl.exists()


def test_another_users_run_is_refused_and_listed_as_such(
    folder: Path, refused: Refused, capfd: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file to another user")
    run, own = record(folder / "runs/theirs"), record(folder / "runs/own")
    for path in ("place/record.json", "place", "."):
        os.chown(run / path, 4711, -1)
        said = refused("stop", "theirs")
        assert "belongs to user 4711" in said
        assert main(("runs", "--json")) == 0
        mine, theirs = json.loads(capfd.readouterr().out)
        assert (mine["run"], mine["place"]) == ("runs/own", "local")
        assert (theirs["state"], theirs["place"], theirs["job"]) == ("unknown", "", {})
        os.chown(run / path, 0, -1)
    (own / "place/record.json").chmod(0o666)
    assert "run chmod o-w on it" in refused("logs", "own")
    (run / "place/record.json").unlink()
    (run / "place/record.json").symlink_to(own / "place/record.json")
    assert "can't be read" in refused("stop", "theirs")


def test_no_process_is_stopped_but_the_runs(folder: Path, bystander: subprocess.Popen[bytes]) -> None:
    began = started_at(bystander.pid)
    assert began is not None
    assert is_process(bystander.pid, began)
    assert not is_process(bystander.pid, "")
    place = LocalPlace()
    # Its number was given out again: the process is there, and began at another time.
    other = record(folder / "other", job={"process": bystander.pid, "started": f"{began}0"})
    (other / "place/run.sh.pid").write_text(str(bystander.pid))
    run = PlacedRun.read(str(other))
    assert place.status(run).state == "unknown"
    place.stop(run)
    # The run's own process lives, and its file names processes that it hasn't started.
    me = {"process": os.getpid(), "started": started_at(os.getpid())}
    mine = record(folder / "mine", job=me)
    run = PlacedRun.read(str(mine))
    assert place.status(run).state == "running"
    for pid in (os.getppid(), -1, 0, 1, -os.getpid()):
        (mine / "place/run.sh.pid").write_text(str(pid))
        place.stop(run)
    assert bystander.poll() is None


@pytest.mark.parametrize("name", ["run_dir", "code_dir", "subfolder"])
def test_a_folder_with_a_line_break_is_refused_by_every_place(name: str) -> None:
    folders: dict[str, Any] = {"run_dir": "/runs/a", "code_dir": "/runs/a/code", "subfolder": ""}
    with pytest.raises(ConfigError, match="line break or another control character"):
        PlaceRequest(stage="fit", words=(), **{**folders, name: "/runs/a\ntouch /tmp/x #"})
