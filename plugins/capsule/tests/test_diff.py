"""`stratagem diff` opens capsules: a step that isn't finite, and one that raises."""

from __future__ import annotations

import json

import pytest
from kept_runs import Trained, command

pytestmark = pytest.mark.timeout(300)


def test_a_step_that_is_not_finite_agrees_with_one_process(trained: Trained) -> None:
    run = trained("ddp", "model.fault=nan", "model.at=9")
    done = command("diff", str(run), "--estimate", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["sentence"].startswith("The runs agree: ")
    first = {"step": 9, "kind": "input", "name": "body", "item": "0"}
    assert found["non_finite"] == {"a": {**first, "ranks": [0]}, "b": {**first, "ranks": [0, 1]}}
    assert found["notes"] == []


def test_a_step_that_raises_has_nothing_to_compare(trained: Trained) -> None:
    run = trained("ddp", "model.fault=raise", "model.at=4", fails=True)
    done = command("diff", str(run), "--estimate")
    assert done.returncode == 2
    assert "raises ValueError: planted at batch 3 on rank 0, so that there is no whole step" in done.stderr
    assert "Traceback" not in done.stderr
