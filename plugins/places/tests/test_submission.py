"""`--on`: what is checked and written, and what the place is asked to run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stratagem_cli.main import main

FIT = ("fit", "net.py:Net", "--accelerator", "cpu", "--max-epochs", "1")
HERE = (*FIT, "--strategy", "single", "--on", "local")


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs elsewhere finds our sources by the same paths."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def test_a_run_on_local_prints_its_end_and_leaves_its_record(
    net: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main((*FIT, "--strategy", "ddp", "--devices", "2", "--on", "local", "--run-dir", "out/a")) == 0
    assert "epoch 1/1" in capsys.readouterr().out
    run = folder / "out/a"
    assert {"config.yaml", "metrics.csv", "place"} <= {path.name for path in run.iterdir()}
    assert (run / "place/code/net.py").read_text() == net.read_text()
    assert "target:" in (run / "place/config.yaml").read_text()
    record = json.loads((run / "place/record.json").read_text())
    assert record["place"] == "local"
    assert record["command"] == [*FIT, "--strategy", "ddp", "--devices", "2"]
    assert main(("runs", "out", "--json")) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["run"], listed["state"], listed["exit_code"]) == ("out/a", "finished", 0)
    assert main(("logs", "out/a", "--rank", "1")) == 0
    assert main(("logs", "out/a", "--rank", "0")) == 0
    assert "epoch 1/1" in capsys.readouterr().out
    assert main(("logs", "out/a", "--rank", "2")) == 2
    assert "there are ranks 0, 1" in capsys.readouterr().err
    assert main(("stop", "out/a")) == 0
    assert "is over" in capsys.readouterr().out


def test_a_detached_run_uses_the_code_as_it_was_and_stops_by_saving(
    net: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net.write_text(
        net.read_text().replace(
            "    def training_step(self, batch, batch_idx):",
            "    def training_step(self, batch, batch_idx):\n        import time\n        time.sleep(0.1)",
        )
    )
    words = ("fit", "net.py:Net", "--accelerator", "cpu", "--strategy", "single", "--max-epochs", "1000")
    assert main((*words, "--run-dir", "out/b", "--on", "local", "--detach")) == 0
    net.write_text("raise SystemExit(3)")
    assert "stratagem logs out/b --follow" in capsys.readouterr().out
    deadline = time.monotonic() + 100
    output = folder / "out/b/place/output/node-0.txt"
    while not (output.exists() and "epoch 1/1000" in output.read_text()):
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.2)
    assert main((*words, "--run-dir", "out/b", "--on", "local", "--detach")) == 2
    assert main(("stop", "out/b")) == 0
    assert main(("logs", "out/b", "--follow")) == 75
    said = capsys.readouterr()
    assert "saved" in said.out
    assert "stopped, exit code 75" in said.err
    assert any((folder / "out/b/checkpoints").glob("preempted-step=*"))


def test_a_failing_run_hands_its_exit_code_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "script.py").write_text("import sys\nprint('with', sys.argv[1:])\nsys.exit(7)\n")
    words = (
        "run",
        "--strategy",
        "single",
        "--on",
        "local",
        "--accelerator",
        "cpu",
        "script.py",
        "--on",
        "x",
        "--detach",
    )
    assert main(words) == 7
    said = capsys.readouterr()
    assert "with ['--on', 'x', '--detach']" in said.out
    (run,) = (folder / "runs").iterdir()
    assert run.name.endswith("-script")
    assert f"{run.name}: failed, exit code 7" in said.err


def test_a_dry_run_writes_nothing(net: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(folder.rglob("*"))
    words = (*FIT, "--on=local", "--run-dir=out/a", "--dry-run", "--ckpt-path", "x")
    assert main(words) == 0
    script = capsys.readouterr().out
    command = (
        f"-m stratagem fit --run-dir {folder}/out/a net.py:Net --accelerator cpu --max-epochs 1 --ckpt-path x"
    )
    assert command in script
    assert set(folder.rglob("*")) - before <= {folder / "__pycache__", *(folder / "__pycache__").glob("*")}


def test_refusals(net: Path, folder: Path, refused, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "places.yaml").write_text("local:\n  mine: {}\n  odd: {speed: 3}\n")
    cases = {
        (*FIT, "--dry-run"): "--dry-run goes with --on PLACE",
        (*FIT, "--detach", "--on-set", "a=b"): "--detach, --on-set goes with --on PLACE",
        (*FIT, "--on", "locl"): "no place is called 'locl'; nearest: local",
        (*FIT, "--on", "local:min"): "places.yaml has no 'min' below 'local'; nearest: mine",
        (*FIT, "--on", "local:odd"): "LocalPlace has no setting 'speed'",
        (*FIT, "--on", "local", "--on-set", "speed=3"): "LocalPlace has no setting 'speed'",
        (*FIT, "--on", "local", "--on-set", "speed"): "write it key=value",
        (*FIT, "--on", "local", "--num-nodes", "2"): "--on local has one node",
        (*FIT, "--on", "local", "--node-rank", "1"): "--node-rank 1 is decided by the place",
        (*FIT, "--on", "local", "--environment", "slurm"): "--environment slurm is decided by the place",
        ("fit", "net.py:Nett", "--on", "local"): "has no class 'Nett'; nearest: Net",
        ("fit", "net.py:Net", "--on", "local", "--set", "model.hiden=3"): "nearest: hidden",
        ("logs", "nothing"): "'nothing' is no folder of a run that was submitted",
        ("stop", "."): "'.' is no folder of a run that was submitted",
        ("runs", "nowhere"): "there is no folder 'nowhere'",
    }
    for words, sentence in cases.items():
        assert sentence in refused(*words), words


def test_named_places(
    net: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = folder / "home"
    (home / "stratagem").mkdir(parents=True)
    (home / "stratagem/places.yaml").write_text("local:\n  home: {}\nnone:\n  such: {}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    assert main(("places", "--json")) == 0
    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert listed["local"]["usable_here"]
    assert listed["local:home"]["from"] == str(home / "stratagem/places.yaml")
    assert "no place is called 'none'" in listed["none:such"]["why"]
    assert main((*FIT, "--on", "local:home", "--dry-run")) == 0
    monkeypatch.setenv("STRATAGEM_PLACES", str(folder / "absent.yaml"))
    assert main((*FIT, "--on", "local:home", "--dry-run")) == 2
    assert "absent.yaml" in capsys.readouterr().err
    (folder / "absent.yaml").write_text("local: [1]\n")
    assert main(("places",)) == 2


@pytest.mark.long
def test_ctrl_c_ends_the_watching_alone(net: Path, folder: Path) -> None:
    net.write_text(
        net.read_text().replace("self.lr = lr", "self.lr = lr\n        __import__('time').sleep(6)")
    )
    words = [sys.executable, "-m", "stratagem", *HERE, "--run-dir", "out/c"]
    watching = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert "submitted" in watching.stdout.readline()
    assert "run folder" in watching.stdout.readline()
    time.sleep(0.5)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(120) == 130
    assert "the run continues" in watching.communicate()[1]
    assert main(("logs", "out/c", "--follow")) == 0
