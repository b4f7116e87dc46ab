"""The short form of tests/soak/kills.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.kills import soak


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_rank_is_killed_while_it_does_each_thing(tmp_path: Path) -> None:
    outcome = soak("ddp", tmp_path, kills=4, seed=1, epochs=1)
    assert outcome.problems == []
    assert sorted(outcome.kills) == ["collective", "evaluation", "saving", "training"]
