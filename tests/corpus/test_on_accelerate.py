"""Bugs of programs on accelerate and the Trainer of transformers are named: make test-libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.measure import failures

pytest.importorskip("accelerate", reason="make test-libraries has it")


def test_all_are_named(tmp_path: Path) -> None:
    from tests.corpus.on_accelerate import BUGS

    assert failures("on_accelerate", BUGS, tmp_path) == []
