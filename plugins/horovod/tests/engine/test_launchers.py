"""The same training under horovodrun, mpirun, torchrun and by its own launch; each in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mpi_workers import needs_mpi

from stratagem.sdk.processes import free_port

BIN = Path(sys.executable).parent
NET = """
import json
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import stratagem


class Net(stratagem.Module):
    def __init__(self, folder: str = ".", cursed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.folder, self.cursed = folder, cursed
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        if self.cursed and self.global_rank == 1 and batch_idx == 1:
            raise ArithmeticError("the second batch is cursed")
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        samples = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(samples), 8 // self.trainer.world_size)

    def on_train_end(self):
        import horovod.torch as hvd

        reported = {
            "controller": "mpi" if hvd.mpi_enabled() else "gloo",
            "place": [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()],
            "weights": [value for p in self.parameters() for value in p.flatten().tolist()],
        }
        Path(self.folder, f"{self.global_rank}.json").write_text(json.dumps(reported))
"""
FIT = [
    *("fit", "net.py:Net", "--strategy", "horovod", "--accelerator", "cpu", "--max-epochs", "2"),
    *("--set", "strategy.scale_lr=false", "--set", "trainer.enable_progress_bar=false"),
]


def ran(folder: Path, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "net.py").write_text(NET)
    variables = {**os.environ, **environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=200, check=False
    )


def ranks(folder: Path, done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9].json"))]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Weights after the same training in one process."""
    folder = tmp_path_factory.mktemp("alone")
    (found,) = ranks(folder, ran(folder, "stratagem", *FIT, "--devices", "1"))
    return found["weights"]


def expect_same(found: list[dict[str, object]], alone: object, size: int, controller: str = "gloo") -> None:
    assert [each["place"] for each in found] == [[rank, size, rank, size, 0, 1] for rank in range(size)]
    assert [each["controller"] for each in found] == [controller] * size
    for each in found:
        assert each["weights"] == pytest.approx(alone, abs=1e-6)
        assert each["weights"] == found[0]["weights"]


def test_its_own_launch(tmp_path: Path, alone: object) -> None:
    expect_same(ranks(tmp_path, ran(tmp_path, "stratagem", *FIT, "--devices", "2")), alone, 2)


def test_horovodrun(tmp_path: Path, alone: object) -> None:
    done = ran(tmp_path, "horovodrun", "--gloo", "-np", "4", "stratagem", *FIT, "--devices", "4")
    expect_same(ranks(tmp_path, done), alone, 4)
    assert "made by horovod" in done.stdout + done.stderr


def test_torchrun(tmp_path: Path, alone: object) -> None:
    torchrun = ("torchrun", "--standalone", "--nproc-per-node=2", "--no-python")
    expect_same(ranks(tmp_path, ran(tmp_path, *torchrun, "stratagem", *FIT, "--devices", "2")), alone, 2)


@pytest.mark.parametrize("controller", ["mpi", "gloo"])
def test_mpirun(tmp_path: Path, alone: object, controller: str) -> None:
    needs_mpi()
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
    command = (*mpirun, "stratagem", *FIT, "--devices", "2")
    done = ran(tmp_path, *command, HOROVOD_CONTROLLER=controller)
    expect_same(ranks(tmp_path, done), alone, 2, controller)


def test_horovodrun_by_mpi(tmp_path: Path, alone: object) -> None:
    needs_mpi()
    command = ("horovodrun", "--mpi", "-np", "2", "--mpi-args=--allow-run-as-root --oversubscribe")
    done = ran(tmp_path, *command, "stratagem", *FIT, "--devices", "2")
    expect_same(ranks(tmp_path, done), alone, 2, "mpi")


def test_two_nodes(tmp_path: Path, alone: object) -> None:
    """Two launches on this machine, each of a node with two processes."""
    (tmp_path / "net.py").write_text(NET)
    together = ("--num-nodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    environ = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "lo"}
    command = ["stratagem", *FIT, "--devices", "2", *together]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [subprocess.Popen(command, cwd=tmp_path, env=environ, **pipes) for _ in range(2)]
    reported = [process.communicate(timeout=200)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], reported
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("[0-9].json"))]
    assert [each["place"] for each in found] == [[rank, 4, rank % 2, 2, rank // 2, 2] for rank in range(4)]
    for each in found:
        assert each["weights"] == pytest.approx(alone, abs=1e-6)


def test_a_rank_that_fails_ends_horovodrun(tmp_path: Path) -> None:
    command = ("stratagem", *FIT, "--devices", "2", "--set", "model.cursed=true")
    done = ran(tmp_path, "horovodrun", "--gloo", "-np", "2", *command)
    assert done.returncode != 0
    assert "the second batch is cursed" in done.stdout + done.stderr
