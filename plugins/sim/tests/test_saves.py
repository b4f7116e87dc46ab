"""Saves have what was there when they began, though work on the device runs late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_sim.build import is_built
from torch import nn

import stratagem

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]


@pytest.fixture(autouse=True)
def _work_runs_late(monkeypatch: pytest.MonkeyPatch) -> None:
    # In ten seconds, a file is written whose bytes have not come yet. The ranks are processes of their own.
    monkeypatch.setenv("STRATAGEM_SIM_DELAY", "late")
    monkeypatch.setenv("STRATAGEM_SIM_LATE_MS", "10000")
    monkeypatch.setenv("STRATAGEM_SIM_DEVICES", "4")


def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    return module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def whole(module: nn.Module) -> dict[str, Any]:
    """Return the parameters' values on the CPU, of sharded ones the whole. Collective."""
    return {
        name: getattr(each.detach(), "full_tensor", each.detach)().cpu().tolist()
        for name, each in module.named_parameters()
    }


def train(runtime: Any, folder: Path | None) -> dict[int, Any]:
    """Train three steps; save after the first two, or return the parameters after these."""
    module, optimizer = net()
    model, optimizer = runtime.setup(module, optimizer)
    seen = {}
    for step in range(3):
        optimizer.zero_grad()
        x = torch.linspace(-1, 1, 256, device=runtime.device).reshape(4, 64) + runtime.rank
        runtime.backward(model(x).square().mean())
        optimizer.step()
        if folder is None:
            seen[step] = whole(module)
        elif step < 2:
            runtime.save(folder / str(step))
    return seen


def read(runtime: Any, path: Path) -> dict[str, Any]:
    module, optimizer = net()
    runtime.setup(module, optimizer)
    runtime.load(path)
    return whole(module)


@pytest.mark.parametrize("in_background", [True, False])
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("fsdp", 2), ("fsdp_offload", 2), ("fsdp", 4)])
def test_a_save_has_what_was_computed_before_and_nothing_of_later(
    strategy: str, ranks: int, in_background: bool, tmp_path: Path
) -> None:
    run = stratagem.Runtime(strategy, "sim", ranks, checkpoint_options={"async": in_background})
    run.launch(train, tmp_path, quiet=True)
    expected = stratagem.Runtime(strategy, "cpu", ranks).launch(train, None, quiet=True)
    for step in range(2):
        found = stratagem.Runtime("single", "cpu", 1).launch(read, tmp_path / str(step), quiet=True)
        for name, value in found.items():
            torch.testing.assert_close(
                torch.tensor(value), torch.tensor(expected[step][name]), rtol=0, atol=1e-6
            )
