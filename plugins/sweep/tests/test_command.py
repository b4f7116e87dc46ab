"""`stratagem sweep`: its runs, what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stratagem_cli.main import main

LEVEL = f"{Path(__file__).parents[3]}/tests/support/searched.py:Level"
ONE = ("--accelerator", "cpu", "--devices", "1", "--max-epochs", "2")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def sweep(*words: str) -> int:
    return main(["sweep", LEVEL, *ONE, "--sweep-dir", "found", *words])


def started(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stratagem", "sweep", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_runs_by_their_metric_one_of_which_fails(capsys):
    """Two at a time; the best one's command repeats it."""
    varied = [
        "--search",
        "level=0.5,0.25",
        "--search",
        "kind=calm,raises",
        "--sampler",
        "grid",
        "--parallel",
        "2",
    ]
    assert sweep(*varied) == 0
    said = capsys.readouterr()
    lines = [line.split() for line in said.out.splitlines() if line[:2].strip().isdigit()]
    assert [line[:5] for line in lines] == [
        ["2", "finished", "0.25", "0.25", "calm"],
        ["0", "finished", "0.5", "0.5", "calm"],
        ["1", "failed", "0.5", "raises", lines[2][4]],
        ["3", "failed", "0.25", "raises", lines[3][4]],
    ]
    assert "ValueError: this kind can't be trained" in said.out
    assert said.err.count("  run 0 ") == 2
    best = said.out.splitlines()[-1]
    assert best == "best  run 2, val_loss 0.25: stratagem fit --config found/2/config.yaml"
    assert main(["fit", "--config", "found/2/config.yaml", "--run-dir", "again"]) == 0
    assert "val_loss  0.25" in capsys.readouterr().out
    assert main(["runs", "--compare", "found/0", "found/2"]) == 0
    assert "model.level" in capsys.readouterr().out


@pytest.mark.long
def test_a_pruner_ends_runs_of_two_ranks(capsys):
    two = ["--strategy", "ddp", "--devices", "2", "--max-epochs", "4"]
    assert (
        sweep(*two, "--search", "level=0.25,0.5,0.75", "--sampler", "grid", "--pruner", "asha", "--json") == 0
    )
    kept, _, pruned = json.loads(capsys.readouterr().out)
    assert (kept["state"], kept["value"], kept["settings"]) == ("finished", 0.25, {"model.level": "0.25"})
    assert (pruned["state"], pruned["value"]) == ("pruned", 0.75)
    steps = [
        Path(run["folder"], "metrics.csv").read_text().splitlines()[-1].split(",")[0]
        for run in (kept, pruned)
    ]
    assert steps == ["8", "4"]  # two per epoch and rank: the pruned one ended after its second


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_sweep_goes_on_where_it_was(number, capsys):
    slow = [
        "--set",
        "model.step_s=0.2",
        "--max-epochs",
        "4",
        "--search",
        "level=0.5,0.25",
        "--sampler",
        "grid",
    ]
    process = started(LEVEL, *ONE, "--sweep-dir", "found", *slow, "--set", "trainer.log_every_n_steps=1")
    metrics = Path("found/0/metrics.csv")
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    process.send_signal(number)
    said = process.communicate()[0]
    assert process.returncode == 130
    assert "go on: stratagem sweep --resume found" in said
    assert "stopped" in said
    assert not is_running("found/0")
    saved = [path.name for path in Path("found/0/checkpoints").glob("preempted-step=*")]
    assert len(saved) == 1
    assert main(["sweep", "--resume", "found"]) == 0
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines() if line[:2].strip().isdigit()]
    assert lines == [["1", "finished", "0.25"], ["0", "finished", "0.5"]]
    # Each step of the first run was made once: the second process went on from the checkpoint.
    steps = [line.split(",")[0] for line in metrics.read_text().splitlines()[1:]]
    assert sorted(set(map(int, steps)))[-1] == 16
    assert f"step {saved[0].partition('=')[2]}" in Path("found/0/output.log").read_text()
    # There is nothing left to do, unless more is asked for.
    assert main(["sweep", "--resume", "found"]) == 0
    assert "run 2" not in capsys.readouterr().err


def is_running(folder: str) -> bool:
    words = [Path("/proc", pid, "cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    return any(folder in word.read_bytes().decode(errors="replace") for word in words if word.exists())


def test_more_runs_of_a_sweep_draw_other_settings(capsys):
    assert sweep("--search", "level=0.0:1.0", "--runs", "1", "--max-epochs", "1", "--search-seed", "3") == 0
    first = json.loads(Path("found/sweep.json").read_text())
    assert main(["sweep", "--resume", "found", "--runs", "2", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out.partition("config.yaml\n")[2])
    assert len({run["settings"]["model.level"] for run in runs}) == 2
    assert json.loads(Path("found/sweep.json").read_text()) == {**first, "runs": 2}


def test_all_runs_fail(capsys):
    raising = ["--search", "level=1,2", "--set", "model.kind=raises", "--sampler", "grid"]
    assert sweep(*raising, "--strategy", "ddp", "--slot", "1", "--slot", "2") == 1
    assert "best" not in capsys.readouterr().out
    # Each run has the devices of a slot, instead of those of the words.
    printed = [Path(f"found/{run}/output.log").read_text() for run in (0, 1)]
    assert [re.search(r"^  processes +(\d)", each, re.MULTILINE)[1] for each in printed] == ["1", "2"]


SEARCH = ("--search", "level=0:1")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((LEVEL,), "--search is missing: name a setting to vary"),
        ((LEVEL, "--search", "levle=0:1"), "Level has no setting 'model.levle'; nearest: level"),
        ((LEVEL, *SEARCH, *SEARCH), "--search has model.level twice"),
        (
            (LEVEL, "--search", "level=0:1.5", "--sampler", "grid"),
            "--sampler grid tries all values of model.level",
        ),
        (SEARCH, "TARGET is missing"),
        (("nowhere.py:Level", *SEARCH), "there is no file"),
        ((LEVEL, *SEARCH, "--max-epoch", "2"), "No such option '--max-epoch'. (Did you mean"),
        ((LEVEL, *SEARCH, "--strategy", "ddq"), "no strategy is called 'ddq'"),
        ((LEVEL, *SEARCH, "--run-dir", "here"), "--run-dir isn't for sweeps: each run has its own folder"),
        ((LEVEL, *SEARCH, "--on", "local"), "--on isn't for sweeps: a sweep starts its runs on this machine"),
        ((LEVEL, *SEARCH, "--print-config"), "--print-config isn't for sweeps"),
        ((LEVEL, *SEARCH, "--ckpt-path", "auto"), "--ckpt-path isn't for sweeps"),
        ((LEVEL, *SEARCH, "--slot", "0", "--parallel", "2"), "give one of the two"),
        ((LEVEL, *SEARCH, "--strategy", "ddp", "--num-nodes", "2"), "a sweep runs on this machine"),
        (("--resume", "nowhere"), "'nowhere' is no folder of a sweep"),
        (("--resume", "nowhere", "--monitor", "val_acc"), "leave --monitor out"),
        (("--resume", "nowhere", LEVEL), f"leave {LEVEL} out"),
    ],
)
def test_what_cannot_be_meant(words, sentence, capsys):
    cpu = () if "--resume" in words else ("--accelerator", "cpu")
    assert main(["sweep", *words, *cpu]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert not Path("runs").exists()


def test_a_record_that_is_damaged_or_taken(capsys):
    Path("found").mkdir()
    Path("found/sweep.json").write_text('{"format": 1, "runs": 2}')
    assert main(["sweep", "--resume", "found"]) == 2
    assert "found/sweep.json can't be read as the record of a sweep" in capsys.readouterr().err
    assert sweep(*SEARCH) == 2
    assert "there is a sweep in found: go on with it by --resume" in capsys.readouterr().err


def test_under_another_launcher(monkeypatch, capsys):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29400")
    words = ["sweep", LEVEL, *SEARCH, "--accelerator", "cpu", "--strategy", "ddp", "--devices", "2"]
    assert main(words) == 2
    assert "call it once, without torchrun or srun" in capsys.readouterr().err
