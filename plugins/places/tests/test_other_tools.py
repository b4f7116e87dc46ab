"""The files of docs/places/others.md, run with the variables that their tools set."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stratagem.sdk.processes import free_port

PAGE = (Path(__file__).parents[3] / "docs/places/others.md").read_text()
FILES = ("fit.yaml", "fit.dstack.yml", "fit_job.py")
BLOCKS = dict(zip(FILES, re.findall(r"^```(?:yaml|py)\n(.*?)^```", PAGE, re.M | re.S), strict=True))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """`stratagem` on PATH, with our sources."""
    program = tmp_path / "bin/stratagem"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m stratagem "$@"\n')
    program.chmod(0o755)
    paths = os.pathsep.join(path for path in sys.path if path)
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }


def run_all(commands: list[list[str]], environs: list[dict[str, str]]) -> None:
    started = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command, env in zip(commands, environs, strict=True)
    ]
    said = [process.communicate(timeout=200)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(said)


def shell(text: str, folder: Path) -> list[str]:
    text = text.replace("/shared/run1", str(folder / "run1")).replace("29400", str(free_port()))
    return ["bash", "-ec", text]


def assert_two_ranks_trained(run: Path) -> None:
    (newest,) = (run / "checkpoints").glob("epoch=*")
    assert (newest / "rank-00001.json").exists()


@pytest.mark.long
def test_skypilot(net: Path, folder: Path, environ: dict[str, str]) -> None:
    content = yaml.safe_load(BLOCKS["fit.yaml"])
    variables = {
        "SKYPILOT_NUM_NODES": str(content["num_nodes"]),
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
    }
    command = shell(f"{content['run'].rstrip()} --max-epochs 1", folder)
    run_all([command] * 2, [{**environ, **variables, "SKYPILOT_NODE_RANK": str(rank)} for rank in range(2)])
    assert_two_ranks_trained(folder / "run1")


@pytest.mark.long
def test_dstack(net: Path, folder: Path, environ: dict[str, str]) -> None:
    content = yaml.safe_load(BLOCKS["fit.dstack.yml"])
    variables = {
        "DSTACK_NODES_NUM": str(content["nodes"]),
        "DSTACK_GPUS_PER_NODE": "1",
        "DSTACK_MASTER_NODE_IP": "127.0.0.1",
    }
    commands = [each for each in content["commands"] if not each.startswith("pip install")]
    command = shell(" && ".join([*commands[:-1], f"{commands[-1]} --max-epochs 1"]), folder)
    run_all([command] * 2, [{**environ, **variables, "DSTACK_NODE_RANK": str(rank)} for rank in range(2)])
    assert_two_ranks_trained(folder / "run1")


@pytest.mark.long
def test_submitit(net: Path, folder: Path, environ: dict[str, str]) -> None:
    calls = [node for node in ast.walk(ast.parse(BLOCKS["fit_job.py"])) if isinstance(node, ast.Call)]
    (flags,) = [
        [ast.literal_eval(argument) for argument in call.args]
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "Fit"
    ]
    # What TorchDistributedEnvironment().export() sets.
    exported = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    command = [sys.executable, "-m", "stratagem", "fit", *flags, "--max-epochs", "1"]
    environs = [{**environ, **exported, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    run_all([command] * 2, environs)
    assert_two_ranks_trained(folder / "runs/run1")
