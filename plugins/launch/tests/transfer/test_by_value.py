"""What workers can't import is sent by value, and only that; what can't be sent even so is named."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line
from stratagem_launch.elastic import ElasticLauncher
from stratagem_launch.transfer.pickling import dumps, loads
from torch import nn
from torch.utils.data import DataLoader

import stratagem
from stratagem import LaunchPlan, Task
from stratagem.errors import UsageError

FIT = """
import torch
import stratagem
from small import Line
from torch import nn
from torch.utils.data import DataLoader

def fit(module, loader):
    trainer = stratagem.Trainer(
        strategy="ddp", accelerator="cpu", devices=2, max_epochs=1, seed=0, logger=False,
        enable_progress_bar=False, enable_checkpointing=False,
    )
    trainer.fit(module, train_dataloaders=loader)
    return [float(p.sum()) for p in module.parameters()]

class Scripts(Line):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.act(self.layer(x))

def main():
    factor = 2.0

    class Local(Scripts):
        def __init__(self):
            super().__init__(lambda x: x * factor)

    loader = DataLoader(list(torch.ones(16, 4)), 2, collate_fn=lambda rows: (torch.stack(rows), torch.ones(2, 1)))
    fit(Local(), loader)

if __name__ == "__main__":
    main()
    print("good")
"""
SUPPORT = str(Path(__file__).parents[4] / "tests/support")


def test_a_script_with_lambdas_and_local_classes(start_program: Any) -> None:
    path = os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH"))))
    program = start_program(FIT, PYTHONPATH=path)
    out, err = program.communicate(timeout=240)
    assert (program.returncode, out) == (0, "good\n"), err
    (line,) = (line for line in err.splitlines() if "by value" in line)
    assert line.split(" · ")[0].split(maxsplit=2)[2] == "main.Local, main.<lambda>"
    assert "Scripts" not in line  # workers import it from the script


@pytest.mark.parametrize("method", ["forkserver", "spawn", "popen"])
def test_values_by_which_the_task_was_sent_come_back(method: str) -> None:
    class Local:
        def __init__(self, number: int) -> None:
            self.number = number

    said: list[str] = []
    task = Task(lambda given: Local(given.number + 1), (Local(4),), notice=said.extend)
    got = ElasticLauncher(LaunchPlan(1, start_method=method)).launch(task)
    assert (type(got), got.number) == (Local, 5)
    assert any(name.endswith(".Local") for name in said)


def test_what_can_be_imported_is_never_sent_by_value(tmp_path: Path) -> None:
    with closing(dumps([Line, nn.functional.relu, torch.float32, Line()], "spawn", str(tmp_path))) as task:
        assert task.by_value == ()
        assert b"cloudpickle" not in task.content
    layer = nn.Linear(200, 200)
    with closing(dumps([lambda: layer, Line, layer], "spawn", str(tmp_path))) as task:
        assert len(task.by_value) == 1
        function, line, sent = loads(task.content)
    assert line is Line
    assert function() is sent
    torch.testing.assert_close(sent.weight, layer.weight)


class Holding(stratagem.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 1))
        self.net[0].held = held


def test_an_open_file_is_named(tmp_path: Path) -> None:
    trainer = stratagem.Trainer(
        strategy="ddp", accelerator="cpu", devices=2, run_dir=tmp_path / "run", logger=False
    )
    with open(__file__) as file, pytest.raises(UsageError) as caught:
        trainer.fit(Holding(file), train_dataloaders=DataLoader([1]))
    assert str(caught.value) == (
        "module.net.0.held of the task can't be sent to workers by start_method='forkserver' (cannot pickle "
        "'_io.TextIOWrapper' object): make it in the workers, as in setup or configure_model, leave it out by "
        '__getstate__, or use start_method="fork"'
    )


def test_what_a_function_refers_to_is_named(tmp_path: Path) -> None:
    lock = threading.Lock()
    loader = DataLoader([1], collate_fn=lambda rows: lock)
    with pytest.raises(
        UsageError, match=r"^DataLoader\.collate_fn\.lock of the task can't be sent .*_thread\.lock"
    ):
        dumps(Task(print, (loader,)), "spawn", str(tmp_path))
