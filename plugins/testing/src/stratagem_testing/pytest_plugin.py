"""A pytest plugin: `--conformance-json FILE` keeps what came of all contracts.

Loaded by pytest wherever stratagem-testing is installed, so it imports nothing else and does nothing
unless it is asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

OUTCOMES: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()
"""What the contracts of this session came to, in the order in which they ran."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    group = parser.getgroup("stratagem", "conformance of Stratagem's plugins")
    group.addoption(
        "--conformance-json", metavar="FILE", help="write what came of all conformance checks to FILE"
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file, where one is asked for."""
    file = session.config.getoption("--conformance-json", None)
    if file:
        outcomes = session.config.stash.get(OUTCOMES, [])
        Path(file).write_text(json.dumps(outcomes, indent=2, ensure_ascii=False), encoding="utf-8")
