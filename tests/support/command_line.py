"""A target to run, and the command line in this process."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest
from stratagem_cli.main import main

NET = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import stratagem


    class Net(stratagem.Module):
        def __init__(self, hidden: int = 4, lr: float = 0.1, name: str = "net"):
            super().__init__()
            self.lr = lr
            self.net = torch.nn.Linear(2, hidden)

        def _loss(self, batch):
            return self.net(batch[0]).square().mean()

        def training_step(self, batch, batch_idx):
            loss = self._loss(batch)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self._loss(batch), sync_dist=True)

        def test_step(self, batch, batch_idx):
            self.log("test_loss", self._loss(batch), sync_dist=True)

        def predict_step(self, batch, batch_idx):
            return self.net(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr)

        def train_dataloader(self):
            data = TensorDataset(torch.arange(16.0).reshape(8, 2) / 16)
            return DataLoader(data, batch_size=2)

        val_dataloader = test_dataloader = predict_dataloader = train_dataloader


    def make_net(hidden: int = 3):
        return Net(hidden)


    class Plain(torch.nn.Module):
        pass


    NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, empty; what targets in it import is forgotten afterwards."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield work
    for name in set(sys.modules) - before:
        if str(work) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def net(folder) -> Path:
    """net.py, with a module class Net."""
    path = folder / "net.py"
    path.write_text(dedent(NET))
    return path


def files_here() -> dict[str, int]:
    """When each file below the working directory was written, but for what Python caches there."""
    files = (path for path in Path.cwd().rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path): path.stat().st_mtime_ns for path in files}


@pytest.fixture
def refused(capfd):
    """Run the command line, which has to refuse in one sentence, and return that."""

    def run(*args: str) -> str:
        before = files_here()
        code = main(args)
        captured = capfd.readouterr()
        assert code == 2, captured
        last = captured.err.rstrip().splitlines()[-1]
        assert last.startswith("Error: ")
        assert files_here() == before, "a refused run changed files"
        run.everything = captured.err
        return last.removeprefix("Error: ")

    return run
