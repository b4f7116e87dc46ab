"""Every `type: ignore` of the code names its error and gives the reason after it, as CONTRIBUTING.md asks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (
    "conftest.py",
    "core/**/*.py",
    "plugins/**/*.py",
    "tests/**/*.py",
    "docs/**/*.py",
    "examples/**/*.py",
)
IGNORE = re.compile(r"# type: ignore")
WITH_REASON = re.compile(r"# type: ignore\[[\w,-]+\]  # \S")


def test_every_type_ignore_has_its_reason() -> None:
    sources = [path for pattern in SOURCES for path in ROOT.glob(pattern) if path != Path(__file__)]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if IGNORE.search(line) and not WITH_REASON.search(line)
    ]
    assert not found, "write the reason after it: # type: ignore[code]  # reason"
