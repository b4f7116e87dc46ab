"""Blocks of Python and shell on the pages run as they stand, or their fence says that they are excerpts.

A block marked `python` or `sh` runs; `py` and `bash` mark an excerpt, which has the same colours. A block with
`title="FILE"` quotes a file: test_tutorial.py compares them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement, Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where mypy and pytest bring its forerunner
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "README.md", ROOT / "core/README.md", *sorted(ROOT.glob("plugins/*/README.md"))]
PAGES = [
    *READMES,
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
]
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INFO = re.compile(r'(python|sh|py|bash|diff|json|text|toml|yaml)( title="[^"]+")?')
NOT_RUN = re.compile(r"(pip install|make|#)\b|#")
"""Lines that other tests hold: names to install below, targets in test_tutorial.py."""


def blocks() -> list[tuple[str, str, str]]:
    """Page with number, what its fence says, and text of every block."""
    return [
        (f"{page.relative_to(ROOT)} {number}", match[2], textwrap.dedent(match[3]))
        for page in PAGES
        for number, match in enumerate(FENCE.finditer(page.read_text()))
    ]


def commands(text: str) -> str:
    """The lines of a shell block that run here."""
    lines = text.replace("\\\n", " ").splitlines()
    return "\n".join(re.sub(r"\s+#.*", "", line) for line in lines if not NOT_RUN.match(line.strip()))


BLOCKS = blocks()
PROGRAMS = {text: place for place, info, text in BLOCKS if info == "python"}
SHELL = {commands(text): place for place, info, text in BLOCKS if info == "sh" and commands(text).strip()}


def test_every_fence_says_what_is_in_it() -> None:
    assert [(place, info) for place, info, _ in BLOCKS if not INFO.fullmatch(info)] == []
    assert len(PROGRAMS) > 15
    assert len(SHELL) > 15


def test_a_program_on_a_page_defines_its_names(tmp_path: Path) -> None:
    for number, (text, place) in enumerate(PROGRAMS.items()):
        (tmp_path / f"block{number}.py").write_text(f"# {place}\n{text}")
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select=F821",
        "--output-format=full",
        ".",
    ]
    done = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\nIs it an excerpt? Then its fence says `py`."


def test_what_a_page_installs_is_a_distribution_with_its_extras() -> None:
    extras = {}
    for path in [
        ROOT / "pyproject.toml",
        *ROOT.glob("*/pyproject.toml"),
        *ROOT.glob("plugins/*/pyproject.toml"),
    ]:
        project = tomllib.loads(path.read_text())["project"]
        extras[project["name"]] = set(project.get("optional-dependencies", {}))
    words = [
        (place, word.strip("'\""))
        for place, info, text in BLOCKS
        if info in ("sh", "bash")
        for line in re.findall(r"pip install ([^#\n&|;]+)", text)
        for word in line.split()
    ]
    assert len(words) > 30
    wrong = []
    for place, word in words:
        try:
            wanted = Requirement(word)
        except InvalidRequirement:
            continue  # an option, or a folder
        if wanted.name.startswith("stratagem") and not wanted.extras <= extras.get(wanted.name, set()):
            wrong.append((place, word))
        if wanted.name.startswith("stratagem") and wanted.name not in extras:
            wrong.append((place, word))
    assert wrong == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the examples, as in a checkout, and digits.py, as `stratagem example digits` writes it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    example = ROOT / "plugins/trainer/src/stratagem_trainer/examples/digits.py.txt"
    (tmp_path / "digits.py").write_text(example.read_text())
    return tmp_path


def run(command: list[str], folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("text", [pytest.param(text, id=place) for text, place in PROGRAMS.items()])
def test_a_program_on_a_page_runs(text: str, folder: Path) -> None:
    (folder / "program.py").write_text(text)
    run([sys.executable, "program.py"], folder)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("text", [pytest.param(text, id=place) for text, place in SHELL.items()])
def test_commands_on_a_page_run(text: str, folder: Path) -> None:
    run(["bash", "-euo", "pipefail", "-c", text], folder)
