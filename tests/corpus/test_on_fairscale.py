"""Bugs of programs on FairScale are named, and right programs agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus.measure import failures

pytest.importorskip("fairscale", reason="stratagem-fairscale[engine] brings it")


@pytest.mark.long
def test_all_are_named(tmp_path: Path) -> None:
    from tests.corpus.on_fairscale import BUGS

    assert failures("on_fairscale", BUGS, tmp_path) == []
