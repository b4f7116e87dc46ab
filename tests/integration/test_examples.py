"""The examples run with the commands that they document."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(folder, *words):
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_demo_reaches_97_percent_and_leaves_its_files(tmp_path):
    recipe = re.search(r"^demo:.*\n\t@\$\(BIN\)/(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    program, *words = recipe.replace("examples/", f"{ROOT}/examples/").split()
    assert "--strategy ddp --accelerator cpu --devices 2" in recipe
    printed = run(tmp_path, BIN / program, *words, "--run-dir", "run")
    assert float(re.search(r"^val_acc +([\d.]+)$", printed, re.MULTILINE)[1]) >= 0.97
    assert "run folder  run" in printed
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {"checkpoints", "config.yaml", "curves.png", "metrics.csv"}
    rows = list(csv.DictReader((tmp_path / "run/metrics.csv").read_text().splitlines()))
    assert max(float(row["val_acc"]) for row in rows if row["val_acc"]) >= 0.97
    assert (tmp_path / "run/curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_raw_loop_under_stratagem_run(tmp_path):
    words = ["run", "--strategy", "ddp", "--accelerator", "cpu", "--devices", "2"]
    script = [str(ROOT / "examples/raw_loop.py"), "--epochs", "3", "--checkpoint", "here"]
    printed = run(tmp_path, BIN / "stratagem", *words, *script)
    assert float(re.search(r"accuracy ([\d.]+)", printed)[1]) >= 0.9
    assert (tmp_path / "here/manifest.json").exists()


def test_the_raw_loop_as_a_plain_program_and_under_torchrun(tmp_path):
    script = [str(ROOT / "examples/raw_loop.py"), "--epochs", "2"]
    plain = run(tmp_path, sys.executable, *script)
    under = run(tmp_path, BIN / "torchrun", "--standalone", "--nproc-per-node", "2", *script)
    assert re.findall("epoch \\d+", plain) == re.findall("epoch \\d+", under) == ["epoch 0", "epoch 1"]
    assert plain.count("accuracy") == under.count("accuracy") == 1
