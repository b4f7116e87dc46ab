"""Batches are copied to the device beside the step before, and arrive before they are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from stratagem_sim import Work, record_timeline
from stratagem_sim.build import is_built
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]
STEPS = 6


class Net(stratagem.Module):
    """Layers that take far longer than the copy of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 512))
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.net(batch["x"][0]).square().mean()
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches(in_pinned_memory: bool) -> Any:
    x = torch.linspace(-1, 1, STEPS * 512 * 512).reshape(STEPS * 512, 512)

    def collate(samples: Any) -> Any:
        return {"x": (torch.stack([sample for (sample,) in samples]),)}

    return DataLoader(TensorDataset(x), 512, collate_fn=collate, pin_memory=in_pinned_memory)


def by_runtime(runtime: stratagem.Runtime, net: Net, in_pinned_memory: bool) -> None:
    model, optimizer = runtime.setup(net, net.configure_optimizers(), forward_methods=["training_step"])
    for idx, batch in enumerate(runtime.dataloader(batches(in_pinned_memory))):
        runtime.backward(model.training_step(batch, idx))
        del batch
        optimizer.step()
        optimizer.zero_grad()


def train(accelerator: str, how: str, in_pinned_memory: bool) -> list[float]:
    torch.manual_seed(0)
    net = Net()
    if how == "runtime":
        run = stratagem.Runtime("single", accelerator, 1)
        run.launch(by_runtime, net, in_pinned_memory, quiet=True)
    else:
        stratagem.Trainer(
            strategy="single", accelerator=accelerator, devices=1, max_epochs=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        ).fit(net, batches(in_pinned_memory))  # fmt: skip
    return [loss.item() for loss in net.losses]


def on_sim(how: str, in_pinned_memory: bool) -> dict[str, Any]:
    """Return losses, how many batches were copied on a stream of their own, and how many beside a step before."""
    with record_timeline() as timeline:
        losses = train("sim", how, in_pinned_memory)
    steps = [work for work in timeline if work.stream == 0 and work.name.startswith("aten::")]
    aside = [work for work in timeline if work.name == "copy to the device" and work.stream != 0]

    def is_beside(copy: Work, index: int) -> bool:
        # Fewer operators have ended than the steps before this batch's have.
        return sum(work.end_ns <= copy.begin_ns for work in steps) < index * len(steps) // STEPS

    beside = sum(is_beside(copy, index) for index, copy in enumerate(aside))
    return {"losses": losses, "aside": len(aside), "beside": beside}


@pytest.mark.parametrize(
    ("how", "in_pinned_memory", "delay"),
    [
        ("runtime", True, "none"),
        ("runtime", True, "late"),
        ("runtime", False, "random"),
        ("trainer", True, "random"),
        ("trainer", True, "late"),
    ],
)
def test_the_next_batch_comes_while_a_step_computes(how: str, in_pinned_memory: bool, delay: str) -> None:
    done = subprocess.run(
        [sys.executable, __file__, how, str(int(in_pinned_memory))],
        env={**os.environ, "STRATAGEM_SIM_DELAY": delay, "STRATAGEM_SIM_LATE_MS": "5000"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["losses"] == train("cpu", how, in_pinned_memory=False)
    assert found["aside"] == STEPS
    if delay != "late":  # there, the copy runs once the step that needs it waits for it
        assert found["beside"] >= STEPS - 2


if __name__ == "__main__":
    print(json.dumps(on_sim(sys.argv[1], sys.argv[2] == "1")))
