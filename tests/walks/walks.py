"""The five walks: what each runs, and the stations on it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.walks.trace import Station, Trace

PROGRAM = """
    import os, signal, torch
    from stratagem import Module

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            return fetch_row(index)

    def fetch_row(index):
        return second_row() if index == 2 else torch.full((3,), float(index))

    def second_row():
        return torch.full((3,), 2.0)

    class Net(Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, index):
            if os.environ.get("WALK_STOPS_AT") == str(index):
                send_signal()
            loss = self.layer(batch).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self):
            return torch.utils.data.DataLoader(Rows(), batch_size=2)

    def send_signal():
        os.kill(os.getpid(), signal.SIGTERM)
"""
PLUGIN = """
    from stratagem.plugin.component import Component
    from stratagem.plugin.hookspecs import hookimpl

    @hookimpl
    def stratagem_components():
        return [Component("extension", "walked", "walked_extension:Walked", "For a walk.")]
"""
EXTENSION = """
    from stratagem.plugin.hookspecs import hookimpl

    class Walked:
        @hookimpl(wrapper=True)
        def setup(self, request):
            return extension_called((yield))

    def extension_called(answer):
        return answer
"""


@dataclass(frozen=True)
class Walk:
    """A way through the code that a reader follows."""

    name: str
    what: str
    run: Callable[[Trace], None]
    stations: tuple[Station, ...]


def flag_to_setup(trace: Trace) -> None:
    import torch.distributed.fsdp  # noqa: F401  # tracing torch's own imports would take most of the time
    from stratagem_cli.main import main

    with trace.recording():
        main(
            ["fit", "program.py:Net", "--strategy=fsdp", "--devices=1", "--accelerator=cpu", "--max-steps=1"]
        )


def batch_to_row(trace: Trace) -> None:
    trainer = _trainer()
    with trace.recording():
        trainer.fit(_net())


def tensor_to_file(trace: Trace) -> None:
    import torch

    from stratagem import Runtime

    def work(runtime: Any) -> None:
        module = torch.nn.Linear(3, 1)
        runtime.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        with trace.recording():
            runtime.save("saved")
            runtime.load("saved")

    Runtime(devices=1, accelerator="cpu").launch(work, quiet=True)


def sigterm_to_checkpoint(trace: Trace) -> None:
    os.environ["WALK_STOPS_AT"] = "2"
    trainer, net = _trainer(), _net()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with trace.recording():
            trainer.fit(net)
    except SystemExit:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        del os.environ["WALK_STOPS_AT"]


def entry_point_to_hook(trace: Trace) -> None:
    import torch

    sys.path.insert(0, os.getcwd())
    folder = Path("walked-1.0.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: walked\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[stratagem]\nwalked = walked_plugin\n")
    Path("walked_plugin.py").write_text(dedent(PLUGIN))
    Path("walked_extension.py").write_text(dedent(EXTENSION))
    from stratagem import Runtime

    def work(runtime: Any) -> None:
        runtime.setup(torch.nn.Linear(3, 1))

    with trace.recording():
        Runtime(devices=1, accelerator="cpu", plugins=["walked"]).launch(work, quiet=True)


def _trainer() -> Any:
    from stratagem_trainer.loggers import CSVLogger

    from stratagem import Trainer

    return Trainer(
        max_steps=4,
        devices=1,
        accelerator="cpu",
        log_every_n_steps=1,
        logger=CSVLogger(flush_every_s=0),
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _net() -> Any:
    sys.path.insert(0, os.getcwd())
    from program import Net

    return Net()


ENTRY_POINT_TO_HOOK = Walk(
    "entry-point-to-hook",
    'A distribution\'s entry point → its hook: `Runtime(plugins=["walked"])`, whose extension wraps `setup`',
    entry_point_to_hook,
    (
        Station("the runtime is made", ours=("runtime/runtime.py", "__init__")),
        Station("entry points are read", foreign=("metadata/__init__.py", "entry_points")),
        Station(
            "the plugin's module says what it offers", foreign=("walked_plugin.py", "stratagem_components")
        ),
        Station("the extension's class is imported", foreign=("walked_extension.py", "<module>")),
        Station("the hook runs", foreign=("walked_extension.py", "extension_called")),
    ),
)
WALKS = (
    Walk(
        "flag-to-setup",
        "A flag → `setup`: `stratagem fit program.py:Net --strategy fsdp --devices 1`",
        flag_to_setup,
        (
            Station("the program starts", ours=("stratagem_cli/main.py", "main")),
            Station("the strategy is made", ours=("stratagem_fsdp/strategy.py", "__init__")),
            Station("the process is a rank", ours=("runtime/session.py", "__init__")),
            Station("the strategy's setup", ours=("stratagem_fsdp/strategy.py", "setup")),
        ),
    ),
    Walk(
        "batch-to-row",
        "A batch → a row of metrics.csv: the second step of a fit that logs every step",
        batch_to_row,
        (
            Station("the dataset is asked for a sample", foreign=("program.py", "second_row")),
            Station("the module's training_step", foreign=("program.py", "training_step")),
            Station("backward", foreign=("torch/_tensor.py", "backward")),
            Station("the optimizer's step", foreign=("torch/optim/sgd.py", "step")),
            Station("the row is written", builtin="write"),
        ),
    ),
    Walk(
        "tensor-to-file-and-back",
        "A tensor → a file and back: `runtime.save(path)`, then `runtime.load(path)`",
        tensor_to_file,
        (
            Station("save is called", ours=("runtime/runtime.py", "save")),
            Station("the tensors' file is written", builtin="write"),
            Station("the checkpoint gets its name", builtin="rename"),
            Station("load is called", ours=("runtime/runtime.py", "load")),
            Station("the tensor's values are copied", builtin="copy_"),
        ),
    ),
    Walk(
        "sigterm-to-checkpoint",
        "SIGTERM → a checkpoint: the signal comes while a step of `Trainer.fit` computes",
        sigterm_to_checkpoint,
        (
            Station("the signal comes", foreign=("program.py", "send_signal")),
            Station("the handler", ours=("", "")),
            Station("the checkpoint gets its name", builtin="rename"),
        ),
    ),
    ENTRY_POINT_TO_HOOK,
)
