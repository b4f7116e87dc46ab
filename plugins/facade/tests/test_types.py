"""What type checkers, and editors with them, say about programs that import `stratagem`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = os.environ.get("STRATAGEM_CHECKED_PYTHON", sys.executable)
"""Has the packages that the programs import; `make test-wheels` gives one of another environment."""
Place = tuple[str, int]
"""A file's name and a line."""
Found = dict[Place, set[str]]
"""Place → the codes of its errors."""


def run(command: list[object], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=folder,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(programs: list[Path], folder: Path) -> Found:
    options = ["--config-file=", "--strict", "--follow-imports=silent", f"--cache-dir={folder / 'mypy'}"]
    options += ["--python-executable", PYTHON]
    found: Found = defaultdict(set)
    for line in run(["mypy", *options, "--no-error-summary", *programs], folder).splitlines():
        error = re.fullmatch(r"(.*):(\d+): error: .*\[([\w-]+)\]", line)
        assert error is not None or ": note: " in line, line
        if error is not None:
            found[Path(error[1]).name, int(error[2])].add(error[3])
    return found


def pyright(programs: list[Path], folder: Path) -> Found:
    said = json.loads(run(["pyright", "--outputjson", "--pythonpath", PYTHON, *programs], folder))
    assert said["summary"]["filesAnalyzed"] == len(programs)
    found: Found = defaultdict(set)
    for each in said["generalDiagnostics"]:
        place = Path(each["file"]).name, each["range"]["start"]["line"] + 1
        found[place].add(each.get("rule", each["message"]))
    return found


def in_comments(program: Path, checker: str) -> dict[Place, str]:
    codes = {
        (program.name, number): re.search(rf"#.* {checker}: ([\w-]+)", line)
        for number, line in enumerate(program.read_text().splitlines(), 1)
    }
    return {place: code[1] for place, code in codes.items() if code is not None}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_each_wrong_line_has_the_error_in_its_comment_and_no_right_line_has_one(
    checker: Callable[[list[Path], Path], Found], request: pytest.FixtureRequest
) -> None:
    pytest.importorskip(checker.__name__)
    # Kept between runs: without its cache, mypy reads all of torch again.
    assert request.config.cache is not None
    folder = request.config.cache.mkdir("checkers")
    right, wrong = PROGRAMS / "right.py", PROGRAMS / "wrong.py"
    found, wanted = checker([right, wrong], folder), in_comments(wrong, checker.__name__)
    assert len(wanted) > 20
    assert {place: codes for place, codes in found.items() if place not in wanted} == {}
    assert {place: code for place, code in wanted.items() if code not in found[place]} == {}


def test_no_package_shows_type_checkers_a_getattr() -> None:
    root = PROGRAMS.parents[3]
    packages = [*root.glob("core/src/*/__init__.py"), *root.glob("plugins/*/src/*/__init__.py")]
    assert len(packages) > 40
    shown = [
        path.parent.name
        for path in packages
        if re.search(r"^(def )?__getattr__\b", path.read_text(), re.MULTILINE)
    ]
    assert shown == ["stratagem_lightning"]  # its names are those of a table
