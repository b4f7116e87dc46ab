"""The runner of docs/compositions.md: it sees what differs, and one composition is tried with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stratagem_testing.trained import plainly

from tests.compositions import check
from tests.compositions.model import Task
from tests.compositions.run import keep

SHORT = Task(steps=2)


def test_the_largest_difference_on_any_rank() -> None:
    plain = plainly(SHORT, 1)
    other = replace(plain, weights={**plain.weights})
    name = next(key for key in plain.weights if key.endswith("experts.up"))
    other.weights[name] = plain.weights[name] + torch.full((), 0.25)
    assert check.largest([plain, plain], plain) == 0
    assert check.largest([plain, other], plain) == pytest.approx(0.25, abs=1e-6)


def test_results_are_kept_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    keep(path, ("replicate", "shard", "tensor"), {"sgd": {"difference": 0.0}})
    keep(path, ("shard", "tensor"), {"sgd": {"refused": "no"}})
    data = json.loads(path.read_text())
    assert list(data["cells"]) == ["shard+tensor", "replicate+shard+tensor"]
    assert [each["name"] for each in data["checks"]] == [each.name for each in check.CHECKS]


@pytest.mark.long
def test_one_composition() -> None:
    for each, refusal, difference in check.results(("expert", "tensor")):
        assert not refusal
        assert difference is not None
        assert difference <= each.tolerance
