"""Tests of a strategy whose engine may not be there, and of which some take minutes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MATRIX = "engine_matrix"
MISSING = "deepspeed isn't installed: pip install 'stratagem[deepspeed]'"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "without_engine: runs where deepspeed isn't installed")
    config.addinivalue_line("markers", f"{MATRIX}: takes minutes; make test-deepspeed runs it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    if find_spec("deepspeed") is None:
        for item in ours:
            if not item.get_closest_marker("without_engine"):
                item.add_marker(pytest.mark.skip(reason=MISSING))
    if MATRIX not in (config.option.markexpr or ""):
        left_out = [item for item in ours if item.get_closest_marker(MATRIX)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
