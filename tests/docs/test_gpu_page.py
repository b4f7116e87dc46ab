"""docs/gpu.md is what the generator makes of the JSON that a run on a GPU left."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from stratagem_testing.strategies import STRATEGY_CHECKS

from tests.gpu.__main__ import KIT, tried_on
from tests.gpu.unfit import failures_of, unfit_on
from tests.parity.hands_on_rows import ROWS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("gpu_page", ROOT / "docs/gen/gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(generator):
    assert (ROOT / "docs/gpu.md").read_text() == generator.page() + "\n", "run `python docs/gen/gpu.py`"
    assert json.loads(generator.DATA.read_text())["machine"]["accelerator"] == "cuda"


@pytest.mark.long
def test_it_is_rehearsed_without_a_gpu(tmp_path):
    found = tmp_path / "gpu.json"
    chosen = ["--accelerator", "cpu", "--only", "waits", "memory", "saves", "marked", "kit single"]
    command = [sys.executable, "-m", "tests.gpu", *chosen, "--side-by-side", "1", "--json", found]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    work = json.loads(found.read_text())["work"]
    assert {name for name, each in work.items() if each["exit"] == 0} == {
        "waits", "memory", "saves", "marked tests", "kit single",
    }  # fmt: skip
    assert work["kit single"]["found"]["failed"] == 0
    assert all(each["background"]["read_back_equal"] for each in work["saves"]["found"].values())


def test_what_says_nothing_of_a_device_is_no_failure_there_and_all_else_is():
    cells = [{"row": row, "verdict": "wrong"} for row in ("gradient_noise", "plain_steps")]
    result = {"exit": 1, "found": [*cells, {"row": "group_edits", "verdict": "equal"}]}
    assert failures_of(result, "sim") == ["plain_steps"]
    assert failures_of(result, "cpu") == ["gradient_noise", "plain_steps"]
    assert failures_of({"exit": None, "found": cells[:1]}, "sim") == ["time"]
    assert failures_of({"exit": 2, "found": None}, "cuda") == ["exit"]
    kit = {"passed": 1, "failures": [{"check": "sparse_gradients", "reason": ""}]}
    assert failures_of({"exit": 1, "found": kit}, "sim") == []
    assert failures_of({"exit": 1, "found": kit}, "cuda") == ["sparse_gradients"]
    equal = {"cells": {"ddp, 32-true": "failed: RuntimeError", "fsdp, 32-true": "differs by 1e-7"}}
    assert failures_of({"exit": 0, "found": equal}, "cuda") == ["ddp, 32-true"]


def test_strategies_are_tried_where_they_run():
    assert set(tried_on("cpu")) == set(KIT)
    assert set(KIT) - set(tried_on("sim")) == {"deepspeed_stage_2"}


def test_what_says_nothing_of_a_device_is_there(generator):
    work = json.loads(generator.DATA.read_text())["work"]
    known = (
        ROWS.keys()
        | {cell["kind"] for cell in work["parity"]["found"]}
        | {each.name for each in STRATEGY_CHECKS}
    )
    for accelerator in ("cuda", "sim"):
        assert set(unfit_on(accelerator)) <= known
