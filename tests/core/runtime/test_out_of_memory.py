"""A device's memory that runs out is reported in a sentence, with what it held and what would need less."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem.errors import UsageError
from stratagem.runtime.out_of_memory import DeviceMemoryError

MIB = 2**20
PARAMETERS = 256 * 1024
"""One MiB in float32."""


def run_out(where: str, monkeypatch: pytest.MonkeyPatch, peak_mib: int | None) -> str:
    """Train until torch raises its error in a part of the first step; return the sentence."""
    from stratagem_cpu import CpuAccelerator

    known = {} if peak_mib is None else {"peak_allocated_bytes": peak_mib * MIB}
    monkeypatch.setattr(CpuAccelerator, "memory", lambda self, device: known)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def fails(*args: Any, **options: Any) -> Any:
        raise error

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        backward = staticmethod(fails)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(PARAMETERS))
            if where == "move":
                self._apply = fails  # type: ignore[method-assign]  # what `to` calls
                self.to(torch.float64)

        def forward(self) -> torch.Tensor:
            return fails() if where == "forward" else self.weight.sum()

    def loop(runtime: stratagem.Runtime) -> None:
        net = Net()
        model, optimizer = runtime.setup(net, torch.optim.Adam(net.parameters()))
        runtime.backward(model())
        optimizer.step()
        loss = model()
        if where == "step":
            monkeypatch.setattr(sys.modules["torch.optim.adam"], "_single_tensor_adam", fails)
        runtime.backward(Fails.apply(loss) if where == "backward" else loss)
        optimizer.step()

    with pytest.raises(DeviceMemoryError) as caught:
        stratagem.Runtime("single", "cpu").launch(loop, quiet=True)
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, UsageError), "the command line exits with 2"
    assert isinstance(caught.value, torch.OutOfMemoryError), (
        "code that catches torch's error catches this one"
    )
    return str(caught.value)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("forward", "in a forward"),
        ("backward", "in backward"),
        ("step", "in the optimizer's step"),
        ("move", "while a module was moved to it"),
    ],
)
def test_what_was_being_done(where: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = run_out(where, monkeypatch, None)
    assert sentence.startswith(f"cpu ran out of memory {message} (test_out_of_memory.py:")


def test_activations_that_are_most_ask_for_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = run_out("backward", monkeypatch, 100)
    assert (
        "up to 100.0 MiB were allocated: parameters and buffers 1.0 MiB, gradients 1.0 MiB, "
        "optimizer states 2.0 MiB, activations and others 96.0 MiB;"
    ) in sentence
    assert "accumulate_grad_batches" in sentence


def test_states_that_are_most_ask_for_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = run_out("step", monkeypatch, 5)
    assert "activations and others 1.0 MiB" in sentence
    assert "take a strategy that shards" in sentence


def runs_out_on_rank_1(runtime: stratagem.Runtime) -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    model, optimizer = runtime.setup(net, torch.optim.Adam(net.parameters()))
    for index in range(3):
        loss = model(torch.randn(4, 64)).square().mean()
        if index == 1 and runtime.global_rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        runtime.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "ddp_sharded"])
def test_one_rank_alone_tells_it_without_the_others(strategy: str) -> None:
    with pytest.raises(DeviceMemoryError, match=r"^cpu ran out of memory outside of forward"):
        stratagem.Runtime(strategy, "cpu", 2).launch(runs_out_on_rank_1, quiet=True)


def test_a_report_that_fails_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratagem.runtime.out_of_memory.held_bytes", lambda session: 1 / 0)

    def loop(runtime: stratagem.Runtime) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\.$"):
        stratagem.Runtime("single", "cpu").launch(loop, quiet=True)
