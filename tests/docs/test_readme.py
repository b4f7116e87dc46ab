"""Programs of README, and of the READMEs of the core and the trainer, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROGRAM = re.compile(
    r"Save this as `(\w+\.py)` and start it with\s+`([^`]+)`:\n\n```python\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PAGES = ["README.md", "core/README.md", "plugins/trainer/README.md"]
PROGRAMS = [
    pytest.param(*found, id=f"{page}: {found[0]}")
    for page in PAGES
    for found in PROGRAM.findall((ROOT / page).read_text())
]


@pytest.mark.parametrize(("name", "command", "source"), PROGRAMS)
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
    assert len(PROGRAM.findall(README)) == README.count("```python") == 2
    assert len(PROGRAMS) == 4
