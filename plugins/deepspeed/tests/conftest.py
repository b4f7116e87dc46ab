"""Tests of a strategy whose engine may not be there."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

ENGINE = find_spec("deepspeed") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "deepspeed" in str(item.path) and not ENGINE and not item.get_closest_marker("without_engine"):
            item.add_marker(
                pytest.mark.skip(reason="deepspeed isn't installed: pip install 'stratagem[deepspeed]'")
            )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "without_engine: runs where deepspeed isn't installed")
    config.addinivalue_line("markers", "every_pair: takes minutes; make test-deepspeed runs it")
