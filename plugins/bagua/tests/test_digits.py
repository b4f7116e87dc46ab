"""On digits every algorithm ends where ddp does, and sends what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from stratagem_bagua import QAdamOptimizer
from stratagem_bagua.asynchronous import AsyncPrepared
from stratagem_sharding.traffic import watch_traffic
from torch import nn
from torch.nn import functional as F

import stratagem

STEPS, WARMUP = 300, 60
UNTRAINED = 2.3
"""The loss of ten classes that are equally likely."""


def sgd(net: nn.Module) -> Any:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def adam(net: nn.Module) -> Any:
    return torch.optim.Adam(net.parameters(), lr=3e-3)


def qadam(net: nn.Module) -> Any:
    return QAdamOptimizer(net.parameters(), lr=3e-3, warmup_steps=WARMUP)


def trained(runtime: Any, optimizer_of: Callable[[nn.Module], Any]) -> tuple[Counter[str], int, float]:
    """Return bytes per step of this rank's messages by collective, those of the parameters, and the final loss."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer = runtime.setup(net, optimizer_of(net))
    generator = torch.Generator().manual_seed(runtime.rank)
    own = torch.arange(runtime.rank, len(x), runtime.world_size)
    sent: Counter[str] = Counter()
    stop = watch_traffic(lambda name, size_bytes: sent.update({name: size_bytes}))
    for _ in range(STEPS):
        chosen = own[torch.randint(len(own), (32,), generator=generator)]
        runtime.backward(F.cross_entropy(model(x[chosen]), y[chosen]), model)
        optimizer.step()
        optimizer.zero_grad()
    if isinstance(optimizer.prepared, AsyncPrepared):
        optimizer.prepared.settle()
    stop()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(runtime.all_reduce(parameter.detach(), "mean"))
        size = sum(4 * parameter.numel() for parameter in net.parameters())
        per_step = Counter({name: total // STEPS for name, total in sent.items()})
        return per_step, size, float(F.cross_entropy(net(x), y))


def launched(
    name: str, optimizer_of: Callable[[nn.Module], Any] = sgd, **options: Any
) -> tuple[Counter[str], int, float]:
    options = {"start_method": "fork", "timeout_s": 200, **options}
    runtime = stratagem.Runtime(name, accelerator="cpu", devices=2, strategy_options=options)
    found: tuple[Counter[str], int, float] = runtime.launch(trained, optimizer_of, quiet=True)
    return found


@pytest.fixture(scope="module")
def ddp() -> float:
    return launched("ddp")[2]


@pytest.mark.parametrize(
    ("name", "collective", "options"),
    [
        ("bagua", "all_reduce", {}),
        ("bagua_bytegrad", "all_to_all", {}),
        ("bagua_decentralized", "all_reduce", {}),
        ("bagua_decentralized", "send", {"peer_selection_mode": "shift_one"}),
        ("bagua_low_precision_decentralized", "send", {}),
    ],
)
def test_ends_where_ddp_does(name: str, collective: str, options: dict[str, Any], ddp: float) -> None:
    sent, size, loss = launched(name, **options)
    assert loss <= 1.02 * ddp
    in_bytes = "bytegrad" in name or "low_precision" in name
    messages = 2 if "low_precision" in name else 1  # to two neighbours, which are one on two ranks
    # A number of 8 bits and a scale for 256 of them, filled up to whole blocks.
    expected = messages * (size / 4 * (1 + 4 / 256) + 2 * 260 if in_bytes else size)
    assert 0.95 * messages * size / (4 if in_bytes else 1) <= sent[collective] <= 1.02 * expected


def test_qadam_ends_where_adam_does_under_ddp() -> None:
    sent, size, loss = launched("bagua_qadam", qadam)
    assert loss <= 1.02 * launched("ddp", adam)[2]
    in_bytes = (size / 4 * (1 + 4 / 256) + 2 * 260) * (STEPS - WARMUP) / STEPS
    assert 0.95 * in_bytes <= sent["all_to_all"] <= 1.02 * in_bytes
    assert 0.95 * size * WARMUP / STEPS <= sent["all_reduce"] <= 1.05 * size * WARMUP / STEPS


def test_async_learns_and_averages_beyond_its_warm_up() -> None:
    sent, size, loss = launched("bagua_async", sync_interval_ms=2, warmup_steps=20)
    # How many averages there are, and when, is another thing in each run, and the loss at the end with it.
    assert loss <= 0.1 * UNTRAINED
    assert sent["all_reduce"] > size * 20 / STEPS
