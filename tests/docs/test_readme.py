"""README's programs run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
PROGRAM = re.compile(
    r"Save this as `(\w+\.py)` and start it with\s+`([^`]+)`:\n\n```python\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PROGRAMS = PROGRAM.findall(README)


@pytest.mark.parametrize(("name", "command", "source"), PROGRAMS, ids=[name for name, *_ in PROGRAMS])
def test_a_program_of_the_readme_runs(name, command, source, tmp_path):
    (tmp_path / name).write_text(source)
    words = {"python": [sys.executable], "stratagem": [sys.executable, "-m", "stratagem"]}
    first, *others = command.split()
    ended = subprocess.run(
        [*words[first], *others], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert "strategy    ddp" in ended.stderr
    assert "loss" in ended.stdout + ended.stderr


def test_every_python_block_of_the_readme_is_such_a_program():
    assert len(PROGRAMS) == README.count("```python") == 2
