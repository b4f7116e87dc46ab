"""Bugs of programs on DeepSpeed's engine are named: make test-deepspeed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.measure import failures


@pytest.mark.soak
def test_all_are_named(tmp_path: Path) -> None:
    from tests.corpus.on_deepspeed import BUGS

    assert failures("on_deepspeed", BUGS, tmp_path) == []
