"""fairscale_pipe beside FairScale by hand, and beside plain PyTorch."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line
from torch import Tensor, nn

import stratagem
from stratagem import ConfigError
from stratagem.errors import DataError

pytest.importorskip("fairscale", reason="stratagem-fairscale[engine] brings it")

from fairscale.nn import Pipe
from stratagem_fairscale import FairScalePipeStrategy


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(step: int) -> Tensor:
    return torch.randn(10, 8, generator=torch.Generator().manual_seed(step))


def trained(module: nn.Module, model: Any, optimizer: Any, backward: Any) -> list[Tensor]:
    for step in range(4):
        optimizer.zero_grad()
        backward(model(batch(step)).square().mean())
        optimizer.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


def by_runtime(runtime: Any) -> list[Tensor]:
    module = net()
    model, optimizer = runtime.setup(module, torch.optim.Adam(module.parameters(), lr=0.01))
    return trained(module, model, optimizer, runtime.backward)


def run(function: Any = by_runtime, *args: Any, devices: int = 2, **options: Any) -> Any:
    strategy = FairScalePipeStrategy(**options)
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=devices)
    return runtime.launch(function, *args, quiet=True)


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": 3},
        {"balance": [1, 4], "chunks": 4, "checkpoint": "always"},
        {"checkpoint": "except_last", "devices": 4},
    ],
)
def test_the_numbers_are_those_by_hand_and_of_plain_pytorch(options: dict[str, Any]) -> None:
    plain, hand = net(), net()
    expected = trained(plain, plain, torch.optim.Adam(plain.parameters(), lr=0.01), Tensor.backward)
    with pytest.warns(DeprecationWarning, match="has been upstreamed"):
        pipe = Pipe(hand, [2, 3], devices=["cpu", "cpu"], chunks=3)
    theirs = trained(hand, pipe, torch.optim.Adam(hand.parameters(), lr=0.01), Tensor.backward)
    del pipe
    ours = run(**options)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)


def test_its_threads_end_with_the_run_and_the_module_is_as_before() -> None:
    threads, kept = set(threading.enumerate()), []

    def keeping(runtime: Any) -> int:
        module = net()
        kept.append(module)
        runtime.setup(module)
        return len(set(threading.enumerate()) - threads)

    assert run(keeping) == 1  # one for each device: the processor, twice
    assert "forward" not in vars(kept[0])
    assert not {thread for thread in set(threading.enumerate()) - threads if thread.is_alive()}


@pytest.mark.parametrize(
    "end", ["sys.exit(7)", pytest.param("raise ValueError('of the program')", marks=pytest.mark.long)]
)
def test_a_program_that_ends_in_the_middle_of_a_run_doesnt_hang(tmp_path: Path, end: str) -> None:
    program = f"""
import sys, torch, stratagem
from torch import nn
from stratagem_fairscale import FairScalePipeStrategy
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
runtime = stratagem.Runtime(strategy=FairScalePipeStrategy(), accelerator="cpu", devices=2)
runtime.launch()
model = runtime.setup(net)
model(torch.ones(4, 4)).sum().backward()
{end}
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=240, capture_output=True)
    assert done.returncode == (7 if "exit" in end else 1), done.stderr


class Misconfigured(Line):
    """Its optimizers fail, once FairScale's threads run."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()

    def configure_optimizers(self) -> Any:
        raise ValueError("no optimizer today")


def test_a_setup_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    threads, module = set(threading.enumerate()), Misconfigured()
    trainer = stratagem.Trainer(
        strategy="fairscale_pipe", accelerator="cpu", devices=2, logger=False, run_dir=tmp_path
    )
    with pytest.raises(ValueError, match="no optimizer today"):
        trainer.fit(module)
    assert "forward" not in vars(module.layers)
    assert not {each for each in set(threading.enumerate()) - threads if each.is_alive() and each.daemon}


def copied(runtime: Any) -> None:
    module = net()
    model = runtime.setup(module)
    buffer = io.BytesIO(pickle.dumps(module))
    for each in (copy.deepcopy(module), pickle.load(buffer)):
        torch.testing.assert_close(each(batch(0)), model(batch(0)))
        with torch.no_grad():
            each[0].weight.zero_()
        assert not torch.equal(each(batch(0)), model(batch(0)))


def test_copies_and_files_of_a_module_in_a_run_are_ordinary_ones() -> None:
    run(copied)


class InPlace(Line):
    """Changes what it is called with, in a thread of FairScale's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.clone())


def test_evaluation_in_inference_mode_goes_on_in_its_threads(tmp_path: Path) -> None:
    def tested(strategy: str, devices: int) -> Any:
        trainer = stratagem.Trainer(
            strategy=strategy, accelerator="cpu", devices=devices, logger=False, run_dir=tmp_path
        )
        return trainer.test(InPlace(), verbose=False)

    assert tested("fairscale_pipe", 2)[0] == pytest.approx(tested("single", 1)[0], abs=1e-6)


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True)


class Complex(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.complex64)


class Real(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.real


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x


def called(runtime: Any, module: nn.Module, value: Any) -> Any:
    return runtime.setup(module)(value)


ROWS = torch.ones(4, 8)


@pytest.mark.parametrize(
    ("layers", "value", "message"),
    [
        ([nn.Linear(8, 8), Pooled()], ROWS, "makes 2 rows of the 4 in a batch"),
        ([Complex(), Real()], ROWS, "a layer returns complex numbers"),
        ([nn.Linear(8, 8), Counting()], ROWS, "changes a buffer in its forward"),
        (
            [nn.Linear(8, 8), nn.BatchNorm1d(8)],
            ROWS,
            "'1' is a BatchNorm1d, which FairScale runs once for each",
        ),
        ([nn.Identity(), nn.Identity()], {"x": ROWS}, r"is called with \(dict\)"),
        ([nn.Identity(), nn.Identity()], (ROWS, ROWS[:1]), "tensors of 1, 4 rows"),
    ],
)
def test_what_chunks_would_make_of_a_batch_is_refused(layers: Any, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        run(called, nn.Sequential(*layers), value)


class Own(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (nn.Linear(8, 8), {}, "Linear has no nn.Sequential of at least two layers"),
        (
            nn.ModuleDict({"a": net(), "b": net()}),
            {},
            "has 2 nn.Sequentials, a, b: name one by sequential_module",
        ),
        (
            nn.ModuleDict({"a": net()}),
            {"sequential_module": "c"},
            "names no submodule of ModuleDict; it has a",
        ),
        (nn.ModuleDict({"a": net()}), {"sequential_module": "a.0"}, "is a Linear, not an nn.Sequential"),
        (Own(nn.Linear(8, 8), nn.Tanh()), {}, "has its own forward"),
        (nn.Sequential(OrderedDict(a=(tanh := nn.Tanh()), b=tanh)), {}, "has a layer twice"),
        (net(), {"balance": [1, 1]}, "is for 2 layers on 2 devices, and there are 5 layers and 2 devices"),
    ],
)
def test_what_it_cannot_share_out_is_refused(
    module: nn.Module, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(called, module, ROWS, **options)
