"""What the launch tests share: tasks that workers can import, and programs run as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

IMPORTABLE = str(Path(__file__).parent / "importable")
sys.path.insert(0, IMPORTABLE)

StartProgram = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name: programs put sockets there, whose paths may have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="launch-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[StartProgram]:
    """Start Python source as a script; whatever is left of it is ended after the test."""
    started: list[subprocess.Popen[str]] = []
    path = os.pathsep.join(filter(None, (IMPORTABLE, os.environ.get("PYTHONPATH"))))

    def start(source: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        script = tmp_path / f"program_{len(started)}.py"
        script.write_text(textwrap.dedent(source))
        program = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path), **environ},
        )
        started.append(program)
        return program

    yield start
    for program in started:
        if program.poll() is None:
            program.kill()
        program.communicate()


@pytest.fixture
def private_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `tempfile` use a directory of this test, so that leftovers can be seen."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def all_end() -> Callable[..., bool]:
    """Wait until none of some processes exists, zombies aside; False when some don't end.

    Those of `launch_tasks` go on for ten minutes where nothing ends them.
    """

    def wait(pids: list[int]) -> bool:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if not any(_runs(pid) for pid in pids):
                return True
            time.sleep(0.02)
        return False

    return wait


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
