"""Shards that DeepSpeed's ZeRO steps are recorded as parts of the user's parameters: make test-deepspeed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stratagem_diff import compare, sentence

PROGRAM = str(Path(__file__).with_name("zero_training.py"))

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zero")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for command in ([sys.executable], launch):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, PROGRAM, str(folder)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_right_training_agrees_with_plain_torch(records: Path, stage: int) -> None:
    found = compare(records / "plain", records / f"stage-{stage}", [records / "rounding"])
    assert found.first is None, sentence(found)
    # 6 initial values, and in each step the gradient, 3 states and the value of 6 parameters, and what 5 modules
    # return with the gradients of that.
    assert found.compared == 6 + 3 * (6 * 5 + 5 * 2)
    assert not found.notes


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_another_weight_decay_of_one_group_is_named(records: Path, stage: int) -> None:
    found = compare(records / "plain", records / f"decayed-{stage}", [records / "rounding"])
    assert sentence(found).startswith("Step 1: parameter '0.bias' differs after its update on all ranks")
