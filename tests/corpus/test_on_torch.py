"""Bugs of programs on PyTorch are named, and right programs agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.measure import failures
from tests.corpus.on_torch import BUGS


@pytest.mark.long
def test_all_are_named(tmp_path: Path) -> None:
    assert failures("on_torch", BUGS, tmp_path) == []
