"""`stratagem runs` lists fits on this machine, and puts them side by side."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stratagem_cli.main import main

import stratagem


class Net(stratagem.Module):
    def __init__(self) -> None:
        import torch

        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(batch).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        import torch

        return torch.optim.SGD(self.parameters(), lr=0.1)


def listed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["runs", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_fit_is_listed_with_its_last_step_and_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    trainer = stratagem.Trainer(
        strategy="single", accelerator="cpu", max_steps=3, log_every_n_steps=1, run_dir="runs/mine"
    )
    trainer.fit(Net(), [torch.ones(1, 1)] * 3)
    capsys.readouterr()
    (record,) = listed(capsys)
    assert (record["run"], record["state"], record["step"]) == ("runs/mine", "over", 3)
    assert record["metrics"]["train_loss"] == pytest.approx(trainer.callback_metrics["train_loss"])
    assert main(["stop", "mine"]) == 2
    assert "RUN 'mine' wasn't submitted by --on" in capsys.readouterr().err


def test_logs_print_what_a_fit_kept_of_a_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"log_dir: {tmp_path / 'kept'}\n")
    assert main(["logs", str(run)]) == 2
    assert "isn't there from this folder): a fit prints to its terminal" in capsys.readouterr().err
    for rank in (0, 1):
        folder = tmp_path / "kept" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"printed by {rank}\n")
    for words, said in (
        ([], "printed by 0\n"),
        (["--rank", "1"], "printed by 1\n"),
        (["-f"], "printed by 0\n"),
    ):
        assert main(["logs", str(run), *words]) == 0
        assert capsys.readouterr().out == said
    assert main(["logs", str(run), "--rank", "7"]) == 2
    assert "has no output of rank 7; there are ranks 0, 1" in capsys.readouterr().err
    (run / "config.yaml").write_text("log_dir: null\n")
    assert main(["logs", str(run)]) == 2
    assert f"{run} has no output: a fit prints to its terminal" in capsys.readouterr().err


def test_states_follow_the_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "mine"
    run.mkdir()
    (run / "config.yaml").write_text("model: {lr: 0.1}\n")
    lock = run / ".lock"
    holder = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert listed(capsys, str(tmp_path))[0]["state"] == "running"
        process.kill()
    assert listed(capsys, str(tmp_path))[0]["state"] == "killed"
    with lock.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the listing has left it free
    os.unlink(lock)
    assert listed(capsys, str(tmp_path))[0]["state"] == "over"


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    for name, rate, loss in (("one", 0.1, "0.5"), ("two", 0.2, "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"model:\n  lr: {rate}\n  hidden: 4\n")
        (tmp_path / name / "metrics.csv").write_text(f"step,epoch,loss\n1,0,2.0\n2,0,{loss}\n")
    return [str(tmp_path / name) for name in ("one", "two")]


def test_runs_are_put_side_by_side(two: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(capsys, "--compare", *two)
    assert [found[name]["metrics"]["loss"] for name in two] == [0.5, 2.0]
    assert main(["runs", "--compare", *two]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["model.lr", "0.1", "0.2"] in rows
    assert ["loss", "0.5", "2"] in rows
    assert not any("hidden" in row[0] for row in rows if row), "what is equal isn't shown"


def test_wrong_comparisons_are_refused(two: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (two[:1], "--compare needs two runs or more, and got 1"),
        ([two[0], "nowhere"], "nowhere is no folder of a fit"),
    ):
        assert main(["runs", "--compare", *words]) == 2
        assert said in capsys.readouterr().err
    Path(two[0], "metrics.csv").write_text("step,loss\n1,high\n")
    assert main(["runs", "--compare", *two]) == 2
    assert "can't be read as metrics of a fit" in capsys.readouterr().err
