"""Core with a strategy and an accelerator, and nothing else of ours: a run of two processes, and clear answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ABSENT = """
import os
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    names = {"click", "rich", "jsonargparse", "yaml", "matplotlib",
             "stratagem_cli", "stratagem_trainer", "stratagem_testing", *os.environ.get("ABSENT", "").split()}

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""

SCRIPT = """
import torch
from stratagem import Runtime

def main(runtime):
    module, optimizer = runtime.setup(net := torch.nn.Linear(1, 1), torch.optim.SGD(net.parameters(), lr=0.1))
    runtime.backward(module(torch.full((2, 1), float(runtime.rank))).sum())
    optimizer.step()
    runtime.save("saved", {"step": 1})
    assert runtime.load("saved") == {"step": 1}
    return runtime.all_reduce(torch.ones(()), "sum").item(), [p.item() for p in module.parameters()][0]

if __name__ == "__main__":
    torch.manual_seed(0)
    ranks, weight = Runtime("ddp", accelerator="cpu", devices=2, seed=0).launch(main)
    print("ranks", ranks)
"""


@pytest.fixture
def without(tmp_path: Path):
    """Run Python where everything but core and the strategies is absent, workers included."""
    (tmp_path / "sitecustomize.py").write_text(ABSENT)
    (tmp_path / "script.py").write_text(SCRIPT)
    # Of plugins, those that `pip install stratagem-core stratagem-ddp stratagem-cpu` installs.
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "STRATAGEM_PLUGINS": "stratagem-ddp,stratagem-cpu"}
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(*words: str, **further: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**environ, **further},
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run


def test_a_runtime_of_two_processes_that_saves_needs_core_and_the_strategy_only(without) -> None:
    done = without("script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ranks 2.0\n"


@pytest.mark.parametrize(
    ("name", "distribution"),
    [
        ("Trainer", "trainer"),
        ("Module", "trainer"),
        ("EarlyStopping", "trainer"),
        ("options", "cli"),
        ("DeferringStrategy", "sharding"),
    ],
)
def test_a_name_of_another_distribution_says_what_to_install(without, name: str, distribution: str) -> None:
    done = without("-c", f"from stratagem import {name}", ABSENT="stratagem_sharding")
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {name} is in stratagem-{distribution}, which is not installed: "
        f"pip install stratagem-{distribution}"
    )


def test_the_command_line_says_what_to_install(without) -> None:
    done = without("-m", "stratagem", "fit")
    assert done.returncode == 2
    assert done.stderr == (
        "Error: the command line is in stratagem-cli, which is not installed: pip install stratagem-cli\n"
    )
