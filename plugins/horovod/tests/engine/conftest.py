"""What needs Horovod itself: `make test-horovod` builds it from its source, in an environment of its own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from stratagem_horovod.plugin import INSTALL

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("horovod") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=f"Horovod isn't installed: {INSTALL}"))
