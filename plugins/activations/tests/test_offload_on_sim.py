"""Offloaded activations leave an asynchronous device, and come back before backward reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from stratagem_activations import Activations
from stratagem_sim.build import is_built
from torch import nn

from stratagem import Runtime

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]


def train(runtime: Runtime) -> tuple[list[float], int]:
    """Return the losses, and how many bytes the device has between a forward and its backward."""
    torch.manual_seed(1)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)) for _ in range(3)))
    module, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1))
    value = torch.randn(512, 64).to(runtime.device)
    losses, held = [], 0
    for _ in range(3):
        loss = module(value).square().mean()
        held = torch.accelerator.memory_allocated()
        runtime.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, held


def in_a_process(mode: str) -> Any:
    """The device is loaded once for a whole process."""
    done = subprocess.run(
        [sys.executable, __file__, mode],
        env={**os.environ, "STRATAGEM_SIM_DELAY": "late", "STRATAGEM_SIM_LATE_MS": "5000"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_losses_are_the_same_and_the_device_holds_less() -> None:
    losses, held = in_a_process("offload")
    plain, held_plain = in_a_process("none")
    assert losses == plain
    assert len(set(losses)) == 3
    assert held < held_plain / 3


def test_another_stream_reads_a_copy_once_it_is_there() -> None:
    assert in_a_process("streams") == [1.0, 1.0]


def on_two_streams() -> list[float]:
    """Save for backward on one stream, and read on another that hasn't waited for it, there and back."""
    from stratagem_activations import offload
    from stratagem_sim import load

    load()
    main, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    found = []
    for first, then in ((side, main), (main, side)):
        with first:
            saved = offload._to_host(torch.ones(1 << 16, device="sim"))
        with then:
            found.append(offload._to_device(saved).mean().item())
    return found


if __name__ == "__main__":
    if sys.argv[1] == "streams":
        print(json.dumps(on_two_streams()))
        sys.exit()
    mode: Any = sys.argv[1]
    runtime = Runtime("single", accelerator="sim", devices=1, plugins=[Activations(mode)])
    print(json.dumps(runtime.launch(train, quiet=True)))
