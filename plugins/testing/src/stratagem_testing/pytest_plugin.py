"""A pytest plugin: `--conformance-json FILE` writes the outcomes of all contracts to a file.

pytest loads it wherever stratagem-testing is installed. So it imports only what it needs, and does nothing without
the option.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

OUTCOMES: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()
"""Outcomes of this session's contracts, in the order in which they ran."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("stratagem", "conformance of Stratagem's plugins")
    group.addoption(
        "--conformance-json", metavar="FILE", help="write the outcomes of all conformance checks to FILE"
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file, if the option is given."""
    file = session.config.getoption("--conformance-json", None)
    if file:
        outcomes = session.config.stash.get(OUTCOMES, [])
        Path(file).write_text(json.dumps(outcomes, indent=2, ensure_ascii=False), encoding="utf-8")
