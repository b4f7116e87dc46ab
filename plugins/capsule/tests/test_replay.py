"""Steps of real runs on one and two processes, run again: bit for bit, and in one process within rounding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from kept_runs import CHOSEN, Trained, command

pytestmark = pytest.mark.timeout(300)

ACCUMULATED = "trainer.accumulate_grad_batches=2"
ROUNDING = 1e-6


def replayed(run: Path, states: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """Replay by the command, with the model writing the states after each step."""
    shutil.rmtree(states, ignore_errors=True)
    done = command("replay", str(run), "--json", *words, KEPT_NET_STATES=str(states))
    assert done.returncode == code, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def difference(run: Path, states: Path, step: int) -> float:
    """The largest difference of a parameter after a step, between the run and the replay."""
    then, now = (torch.load(folder / f"{step}.pt") for folder in (run.parent / "states", states))
    assert then.keys() == now.keys()
    return max(float((then[name] - now[name]).abs().max()) for name in then)


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_chosen_steps_are_repeated(trained: Trained, strategy: str, tmp_path: Path) -> None:
    run = trained(strategy, ACCUMULATED, CHOSEN.format(steps=[3, 5]), "model.in_place=true")
    for step in (3, 5):
        found = replayed(run, tmp_path, "--step", str(step))
        assert found["is_same_run"]
        assert found["is_repeated"]
        assert found["losses"] == found["run_losses"]
        assert len(found["losses"]) == (2 if strategy == "single" else 4)
        assert found["start"] == f"the checkpoint of step {step - 1}"
        assert difference(run, tmp_path, step) == 0
    if strategy != "single":
        found = replayed(run, tmp_path, "--step", "5", "--strategy", "single")
        assert not found["is_same_run"]
        assert found["losses"] == pytest.approx(found["run_losses"], rel=ROUNDING)
        assert difference(run, tmp_path, 5) < ROUNDING


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_a_loss_that_is_nan(trained: Trained, strategy: str, tmp_path: Path) -> None:
    at = 15 if strategy == "single" else 9
    run = trained(strategy, "model.fault=nan", f"model.at={at}")
    found = replayed(run, tmp_path)
    assert (found["step"], found["is_same_run"], found["is_repeated"]) == (at, True, True)
    assert {event["reason"] for event in found["events"]} == {"non-finite"}
    for rank in found["ranks"]:
        assert rank["non_finite_module"].startswith("body.0 ")
        assert not rank["its_input_is_finite"]
        assert "head.bias" in rank["non_finite_gradients"]
    # The step before starts from the same checkpoint.
    before = replayed(run, tmp_path, "--step", str(at - 1))
    assert before["is_repeated"]
    assert difference(run, tmp_path, at - 1) == 0
    assert before["ranks"][0]["non_finite_module"] is None


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_a_step_that_raises_on_one_rank_before_any_checkpoint(
    trained: Trained, strategy: str, tmp_path: Path
) -> None:
    run = trained(strategy, "model.fault=raise", "model.at=4", fails=True)
    found = replayed(run, tmp_path)
    assert (found["step"], found["start"], found["is_repeated"]) == (4, "the beginning of the run", True)
    last = 0 if strategy == "single" else 1
    assert found["events"][0]["reason"] == "raised"
    assert (found["events"][0]["rank"], found["events"][0]["text"].splitlines()[0]) == (
        last,
        "ValueError: planted at batch 3",
    )
    raised = [rank for rank in found["ranks"] if "planted at batch 3" in rank["error"]]
    assert [rank["rank"] for rank in raised] == [last]
    assert "kept_net.py" in raised[0]["traceback"]
    assert difference(run, tmp_path, 3) == 0
    # In one process, whose only rank is the last one.
    found = replayed(run, tmp_path, "--strategy", "single")
    assert "planted at batch 3" in found["ranks"][0]["error"]
    found = replayed(run, tmp_path, "--step", "3", "--strategy", "single")
    assert difference(run, tmp_path, 3) < ROUNDING


def test_a_gradient_that_is_nan_is_named_by_the_next_step(trained: Trained, tmp_path: Path) -> None:
    run = trained("ddp", "model.fault=gradient", "model.at=10")
    found = replayed(run, tmp_path)
    assert found["step"] == 11
    assert found["ranks"][0]["non_finite_at_start"] == "head.bias"
    said = command("replay", str(run)).stdout
    assert "parameter 'head.bias' before the step: an earlier step made it so" in said


def test_nothing_stays_of_a_run_without_a_reason(trained: Trained) -> None:
    run = trained("ddp")
    assert (run / "checkpoints").is_dir()
    assert not (run / "capsules").exists()


def test_what_is_printed(trained: Trained) -> None:
    run = trained("ddp", "model.fault=nan", "model.at=9")
    done = command("replay", str(run), "--step", "9", "--strategy", "single")
    lines = done.stdout.splitlines()
    assert lines[0] == "step 9, from the checkpoint of step 7"
    assert lines[1].split() == ["kept", "the", "loss", "is", "nan,", "on", "rank", "0,", "1"]
    assert "output of module body.0 (Linear), the first, whose inputs aren't either" in done.stdout


def test_the_debugger_opens_where_the_step_raises(trained: Trained) -> None:
    run = trained("ddp", "model.fault=raise", "model.at=4", fails=True)
    done = command("replay", str(run), "--strategy", "single", "--pdb", typed="p batch_idx\nq\n")
    assert "(Pdb) 3" in done.stdout
    assert "raised          ValueError: planted at batch 3" in done.stdout
    refused = command("replay", str(run), "--pdb")
    assert refused.returncode == 2
    assert "--pdb needs a single process" in refused.stderr
