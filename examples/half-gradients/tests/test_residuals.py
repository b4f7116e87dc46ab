"""What is rounded off isn't lost: it is sent with the next step's, and kept in checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from stratagem import Runtime

STEPS = 200
GRADIENT = torch.tensor([[(1 + 1e-5) / 3, 1.0]])  # the first isn't a number of 16 bits


def train(runtime: Runtime, steps: int, load: str = "", save: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    """Move a weight by one gradient again and again; return it, and what is still to be sent."""
    net = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(net.weight)
    module, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), lr=1.0))
    if load:
        runtime.load(load)
    for _ in range(steps):
        runtime.backward((module.weight * GRADIENT).sum())
        optimizer.step()
        optimizer.zero_grad()
    path = save or "last"
    runtime.save(path)
    residual = torch.zeros(1, 2)
    runtime.session.checkpointer.open(path).read({"residual/0/weight": residual})
    return net.weight.detach().clone(), residual


def launch(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
    return Runtime(strategy="half-gradients", accelerator="cpu", devices=1).launch(
        train, *arguments, quiet=True
    )


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_is_rounded_off_adds_up() -> None:
    weight, residual = launch(STEPS)
    rounded_for_good = -STEPS * GRADIENT.half().float()
    assert (weight + STEPS * GRADIENT).abs().max() < 5e-4
    assert (rounded_for_good + STEPS * GRADIENT).abs().max() > 5e-3
    assert residual.abs().max() > 0


def test_what_is_still_to_be_sent_is_in_the_checkpoint() -> None:
    launch(STEPS, "", "half")
    for resumed, whole in zip(launch(1, "half"), launch(STEPS + 1)):
        assert torch.equal(resumed, whole)
