"""On digits: a hundredth of ddp's bytes, and no more loss."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from stratagem_sharding.traffic import watch_traffic
from torch import nn
from torch.nn import functional as F

import stratagem

STEPS = 600


def trained(runtime: Any) -> tuple[int, float, float]:
    """Return the bytes of this rank's messages, and the final model's training loss and held-out accuracy."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    known, unknown = order[:1500], order[1500:]
    own = known[runtime.rank :: runtime.world_size]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    sent: Counter[str] = Counter()
    stop = watch_traffic(lambda name, size_bytes: sent.update({name: size_bytes}))
    model, optimizer = runtime.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    setting_up = sent.total()
    generator = torch.Generator().manual_seed(runtime.rank)
    for _ in range(STEPS):
        chosen = own[torch.randint(len(own), (32,), generator=generator)]
        runtime.backward(F.cross_entropy(model(x[chosen]), y[chosen]), model)
        optimizer.step()
        optimizer.zero_grad()
    stop()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(runtime.all_reduce(parameter.detach(), "mean"))
        accuracy = float((net(x[unknown]).argmax(1) == y[unknown]).float().mean())
        return sent.total() - setting_up, float(F.cross_entropy(net(x[known]), y[known])), accuracy


def launched(name: str, **options: Any) -> tuple[int, float, float]:
    options = {"start_method": "fork", "timeout_s": 200, **options}
    runtime = stratagem.Runtime(name, accelerator="cpu", devices=2, strategy_options=options)
    found: tuple[int, float, float] = runtime.launch(trained, quiet=True)
    return found


@pytest.fixture(scope="module")
def ddp() -> tuple[int, float, float]:
    return launched("ddp")


@pytest.mark.parametrize("name", ["diloco", "streaming_diloco"])
def test_a_hundredth_of_the_bytes_and_no_more_loss(name: str, ddp: tuple[int, float, float]) -> None:
    sent, loss, accuracy = launched(name, outer_grad_dtype="int8")
    assert 100 * sent <= ddp[0]
    assert loss <= 1.02 * ddp[1]
    assert accuracy >= ddp[2] - 0.01
