"""What the markers of conftest.py do: `serial` tests run alone, and some run only where `-m` names them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, time
import pytest

def note(kind):
    began = time.monotonic()
    time.sleep(0.05)
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{kind} {os.getpid()} {began} {time.monotonic()}\\n")

@pytest.mark.serial
@pytest.mark.parametrize("number", range(4))
def test_alone(number):
    note("alone")

@pytest.mark.parametrize("number", range(20))
def test_beside_others(number):
    note("beside")
"""


def test_a_serial_test_runs_while_no_other_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    (tmp_path / "test_program.py").write_text(PROGRAM)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = serial\n")
    notes = tmp_path / "notes"
    monkeypatch.setenv("NOTES", str(notes))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout
    ran = [(kind, pid, float(began), float(ended)) for kind, pid, began, ended in _words(notes)]
    assert len(ran) == 24
    assert len({pid for _, pid, *_ in ran}) == 2
    for kind, _, began, ended in ran:
        beside = [other for other in ran if other[2] < ended and began < other[3]]
        assert kind == "beside" or len(beside) == 1, beside


@pytest.mark.parametrize("marker", ["soak", "sim"])
def test_some_markers_run_only_by_name(tmp_path: Path, marker: str) -> None:
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    (tmp_path / "test_program.py").write_text(
        f"import pytest\n\n@pytest.mark.{marker}\ndef test_marked(): pass\n\ndef test_other(): pass\n"
    )
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n  {marker}\n  long\n")

    def passed(*chosen: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:xdist", *chosen]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout
        return [line.split()[0].rpartition("::")[2] for line in done.stdout.splitlines() if " PASSED" in line]

    assert passed() == ["test_other"]
    assert passed("-m", "not long") == ["test_other"]
    assert passed("-m", marker) == ["test_marked"]


def _words(notes: Path) -> list[list[str]]:
    return [line.split() for line in notes.read_text().splitlines()]
