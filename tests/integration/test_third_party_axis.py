"""A third party's axis: installed by pip, composed with ours, and tried by the kit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STRATAGEM = Path(sys.executable).with_name("stratagem")
SOURCE = ROOT / "examples/slow_axis"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process that finds examples/slow_axis, which pip has installed."""
    base = tmp_path_factory.mktemp("slow_axis")
    shutil.copytree(SOURCE, base / "source")  # building leaves nothing in the checkout
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*pip, "--target", base / "site", base / "source"], check=True)
    path = os.pathsep.join(filter(None, [str(base / "site"), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def ran(*words: Any, environ: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=280)


def test_it_is_composed_with_ours(environ: dict[str, str], tmp_path: Path) -> None:
    words = [STRATAGEM, "fit", f"{ROOT}/examples/digits.py:Digits", "--accelerator", "cpu", "--devices", "4"]
    words += ["--max-steps", "6", "--strategy", "slow=2+shard=2"]
    done = ran(*words, environ=environ, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "slow=2" in done.stderr
    assert "slow-axis 1.0.0" in done.stderr
    assert "slow: ranks {0, 2} {1, 3} send their parameters every few steps (all-reduce)" in done.stderr


def test_its_contract_passes(environ: dict[str, str], tmp_path: Path) -> None:
    """As its author runs it."""
    tests = shutil.copytree(SOURCE / "tests", tmp_path / "tests")
    done = ran(sys.executable, "-m", "pytest", "-q", tests, environ=environ, folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


def test_weights_of_losses_are_refused_by_its_name(environ: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "weighted.py"
    program.write_text(WEIGHTED)
    words = [STRATAGEM, "run", "--strategy", "slow=2", "--accelerator", "cpu", "--devices", "2", program]
    done = ran(*words, environ=environ, folder=tmp_path)
    assert done.returncode == 2
    assert "along axis 'slow' each rank steps by its own gradients" in done.stderr


def test_it_has_less_than_a_hundred_lines() -> None:
    assert sum(len(path.read_text().splitlines()) for path in SOURCE.glob("src/slow_axis/*.py")) < 100


WEIGHTED = """
import torch
import stratagem

def main(runtime):
    net = torch.nn.Linear(2, 1)
    net, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    runtime.backward(net(torch.ones(3, 2)).sum(), weight=3)

if __name__ == "__main__":
    stratagem.Runtime(strategy="slow=2", accelerator="cpu", devices=2).launch(main)
"""
