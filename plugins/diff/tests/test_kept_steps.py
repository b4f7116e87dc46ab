"""`stratagem diff RUN`: a step that `--use capsule` kept, in one process and as in the run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from diff_command import Captured, compared, refusal
from stratagem_cli.main import main

pytestmark = pytest.mark.timeout(300)

TRAINED = Path(__file__).with_name("trained.py")
CHOSEN = "trainer.callbacks=[{class_path: stratagem_capsule.Capsules, init_args: {steps: [2, 4]}}]"
Kept = Callable[..., Path]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Train with `--use capsule`, and return the run's folder."""
    made: dict[tuple[str, ...], Path] = {}

    def fit(net: str, strategy: str, *settings: str) -> Path:
        key = (net, strategy, *settings)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("kept") / "run"
            devices = "1" if strategy == "single" else "2"
            words = ["--strategy", strategy, "--devices", devices, "--accelerator", "cpu", "--use", "capsule"]
            words += [word for each in settings for word in ("--set", each)]
            # Ranks are to differ; the run isn't to notice.
            words += ["--check-replicas-every", "0", "--max-steps", "5", "--run-dir", str(made[key])]
            assert main(["fit", f"{TRAINED}:{net}", *words]) == 0
        return made[key]

    return fit


def test_a_wrong_gradient_of_a_chosen_step_is_named_with_its_rank(kept: Kept, capsys: Captured) -> None:
    run = kept("WrongBias", "ddp", CHOSEN)
    found = compared(capsys, run, "--step", 4, code=1)
    assert (found["a"], found["b"]) == (
        f"step 4 of {run}, strategy single",
        f"step 4 of {run}, as in the run",
    )
    first = found["differences"][0]
    assert (first["step"], first["kind"], first["name"]) == (4, "parameter gradient", "head.bias")
    assert (first["ranks"], round(first["ratio"], 3)) == ([1], 0.5)
    assert (found["rounding"], found["steps"]) == ("measured", 1)
    assert found["non_finite"] == {"a": None, "b": None}
    assert found["notes"] == []


@pytest.mark.long
def test_two_strategies_agree(kept: Kept, tmp_path: Path, capsys: Captured) -> None:
    run = kept("Net", "ddp", CHOSEN)
    words = ("--step", 2, "--estimate", "--keep", tmp_path, "--html", tmp_path / "page.html")
    found = compared(capsys, run, "--strategy", "ddp", "--against", "fsdp", *words, code=0)
    assert found["sentence"].startswith("The runs agree: ")
    assert found["b"].endswith("strategy fsdp")
    assert found["rounding"] == "estimated"
    # The records that were kept say the same.
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0


def test_the_first_module_whose_value_is_not_finite(kept: Kept, tmp_path: Path, capsys: Captured) -> None:
    # Rank 0 has NaN a step later, in its parameters.
    run = kept("NanOnOneRank", "ddp")
    found = compared(capsys, run, "--estimate", "--keep", tmp_path, "--html", tmp_path / "page.html", code=1)
    first = {"step": 3, "kind": "output", "name": "body.3", "item": "", "ranks": [1]}
    assert found["non_finite"] == {"a": None, "b": first}
    assert "the forward value of module 'body.3' (Overflow) differs on rank 1" in found["sentence"]
    assert any("B has values that aren't finite" in cause for cause in found["causes"])
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    said = "Not finite in B, first, step 3: the forward value of module 'body.3' (Overflow), on rank 1."
    assert said in capsys.readouterr().out.splitlines()
    assert (
        "Not finite in B, first, step 3: the forward value of module" in (tmp_path / "page.html").read_text()
    )


@pytest.mark.long
def test_a_run_in_one_process(kept: Kept, capsys: Captured) -> None:
    run = kept("Net", "single", CHOSEN)
    assert "was trained as A is run, with single: give --against" in refusal(capsys, run, "--step", 4)
    assert "A and B would both be step 4" in refusal(capsys, run, "--step", 4, "--against", "single")
    found = compared(capsys, run, "--step", 4, "--against", "ddp", "--estimate", code=0)
    assert found["sentence"].startswith("The runs agree: ")


def test_bad_input_gets_one_sentence(kept: Kept, tmp_path: Path, capsys: Captured) -> None:
    run = Path(shutil.copytree(kept("WrongBias", "ddp", CHOSEN), tmp_path / "run", symlinks=True))
    assert f"give --step: {run} keeps steps 2, 4" in refusal(capsys, run)
    assert "can't be replayed: step 99 isn't kept" in refusal(capsys, run, "--step", 99)
    assert "a kept step may have another strategy or accelerator" in refusal(
        capsys, run, "--step", 2, "--against", "devices=4"
    )
    said = refusal(capsys, run, "--step", 2, "--devices", "4")
    assert f"--devices is for runs, and {run} has a kept step, which is run as it was: leave it out" in said
    assert "--step is for the kept step of one run" in refusal(capsys, run, run, "--step", 2)
    assert "nothing was kept there" in refusal(capsys, tmp_path, "--step", 2)
    event = next(run.glob("capsules/1/*/event-0.json"))
    event.write_text("{")
    assert "event-0.json is damaged" in refusal(capsys, run)
    assert "event-0.json is damaged" in refusal(capsys, run, "--step", 2)


def test_a_damaged_capsule_is_refused(kept: Kept, tmp_path: Path, capsys: Captured) -> None:
    run = Path(shutil.copytree(kept("WrongBias", "ddp", CHOSEN), tmp_path / "run", symlinks=True))
    for batches in run.glob("capsules/1/*/rank-1/*.batches"):
        batches.write_bytes(batches.read_bytes()[:-100])
    said = refusal(capsys, run, "--step", 4)
    assert "side A (step 4 of" in said
    assert "is damaged or cut off" in said
