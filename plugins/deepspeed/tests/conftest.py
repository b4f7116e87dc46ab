"""Tests of a strategy whose engine may not be there, and is slow: they have a target of their own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENGINE = "engine"
MISSING = "deepspeed isn't installed: pip install 'stratagem[deepspeed]'"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "without_engine: runs where deepspeed isn't installed")
    config.addinivalue_line("markers", f"{ENGINE}: runs the engine; in make test-deepspeed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    with_engine = [item for item in ours if not item.get_closest_marker("without_engine")]
    for item in with_engine:
        item.add_marker(ENGINE)
        if find_spec("deepspeed") is None:
            item.add_marker(pytest.mark.skip(reason=MISSING))
    if ENGINE not in (config.option.markexpr or ""):
        config.hook.pytest_deselected(items=with_engine)
        items[:] = [item for item in items if item not in with_engine]
