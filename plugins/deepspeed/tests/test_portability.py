"""A checkpoint of any strategy at any world size goes on under deepspeed, and the other way round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stratagem_deepspeed.conformance import SMALL
from stratagem_testing import StrategySubject
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

FIRST, THEN = 4, 5
"""Steps before the checkpoint, and after."""

STRATEGIES: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp": {"timeout_s": 60},
    "fsdp": {"timeout_s": 60},
    "deepspeed_stage_1": SMALL,
    "deepspeed_stage_2": SMALL,
    "deepspeed_stage_3": SMALL,
}
EVERYWHERE = [(name, size) for name in STRATEGIES for size in (1, 2, 4) if name != "single" or size == 1]
SOME = [("single", 1), ("ddp", 2), ("fsdp", 2), *((f"deepspeed_stage_{stage}", 2) for stage in (1, 2, 3))]


class Net(nn.Module):
    """Shapes that no world size divides, a tie, a buffer and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 7)
        self.inner = nn.Linear(7, 7)
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.full((7,), 0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(self.embedding(tokens)) * self.scale + self.shift))


def make() -> Net:
    torch.manual_seed(1)
    return Net()


def optimizer_over(net: nn.Module) -> torch.optim.Optimizer:
    named = list(net.named_parameters())
    groups = [
        {"params": [p for name, p in named if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for name, p in named if p.dim() < 2], "lr": 3e-3},
    ]
    return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)


def batch(step: int) -> Tensor:
    return torch.randint(11, (8,), generator=torch.Generator().manual_seed(step))


def loss_of(net: Any, tokens: Tensor) -> Tensor:
    return F.cross_entropy(net(tokens), (tokens * 5 + 1) % 11)


def uninterrupted() -> tuple[list[float], dict[str, Tensor]]:
    """The losses of all steps in plain torch, and Adam's states after the first ones, by checkpoint key."""
    net = make()
    optimizer = optimizer_over(net)
    losses, states = [], {}
    for step in range(FIRST + THEN):
        loss = loss_of(net, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == FIRST - 1:
            for name, parameter in net.named_parameters():
                for key, value in optimizer.state[parameter].items():
                    states[f"optimizer/0/{name}/{key}"] = value.clone()
    return losses, states


def begin(subject: StrategySubject, path: str) -> list[float]:
    """Train the first steps and save; return the losses. Run by every rank."""
    return subject.runtime().launch(_begin, path, quiet=True)


def _begin(runtime: Any, path: str) -> list[float]:
    module, optimizer = runtime.setup(make(), optimizer_over)
    losses = [_step(runtime, module, optimizer, step) for step in range(FIRST)]
    runtime.save(path)
    return losses


def go_on(
    subject: StrategySubject, paths: list[str]
) -> dict[str, tuple[list[float], dict[str, float], list[str]]]:
    """Load each checkpoint and train the further steps; return losses, and how far each state was off."""
    return subject.runtime().launch(_go_on, paths, quiet=True)


def _go_on(runtime: Any, paths: list[str]) -> dict[str, tuple[list[float], dict[str, float], list[str]]]:
    module, optimizer = runtime.setup(make(), optimizer_over)
    _, expected = uninterrupted()
    came = {}
    for path in paths:
        runtime.load(path)
        states = {k: _whole(v) for k, v in runtime._prepared[0].optimizer_tensors().items()}
        missing = sorted(expected.keys() ^ states.keys())
        apart = {
            key: float((states[key] - value).abs().max()) for key, value in expected.items() if key in states
        }
        losses = [_step(runtime, module, optimizer, step) for step in range(FIRST, FIRST + THEN)]
        came[path] = (losses, apart, missing)
    return came


def _step(runtime: Any, module: Any, optimizer: Any, step: int) -> float:
    own = batch(step).chunk(runtime.world_size)[runtime.rank]
    loss = loss_of(module, own)
    optimizer.zero_grad()
    runtime.backward(loss, module)
    optimizer.step()
    return float(runtime.all_reduce(loss.detach(), "mean"))


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value.detach().clone()


def subject_of(name: str, size: int) -> StrategySubject:
    return replace(StrategySubject(name, options=STRATEGIES[name]), world_size=size)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], str]:
    """(strategy, world size) → a checkpoint after the first steps; made when first asked for."""
    return _Made(tmp_path_factory.mktemp("checkpoints"))


class _Made(dict[tuple[str, int], str]):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, key: tuple[str, int]) -> str:
        name, size = key
        path = str(self.folder / f"{name}-{size}")
        expected, _ = uninterrupted()
        for losses in subject_of(name, size).run(begin, path, timeout_s=300):
            assert losses == pytest.approx(expected[:FIRST], abs=1e-5), f"before the checkpoint of {key}"
        self[key] = path
        return path


def check(checkpoints: dict[tuple[str, int], str], reader: tuple[str, int], writers: Any) -> None:
    losses, _ = uninterrupted()
    paths = {checkpoints[writer]: writer for writer in writers}
    for came in subject_of(*reader).run(go_on, list(paths), timeout_s=300):
        for path, writer in paths.items():
            ours, apart, missing = came[path]
            assert not missing, f"{writer} → {reader}: states {missing}"
            off = {key: distance for key, distance in apart.items() if not distance <= 1e-5}
            assert not off, f"{writer} → {reader}: moments or step counts are off: {off}"
            assert ours == pytest.approx(losses[FIRST:], abs=1e-5), f"{writer} → {reader}"


@pytest.mark.parametrize("reader", SOME, ids="{0[0]}-{0[1]}".format)
def test_goes_on_under(checkpoints: dict[tuple[str, int], str], reader: tuple[str, int]) -> None:
    check(checkpoints, reader, SOME)


@pytest.mark.parametrize("reader", EVERYWHERE, ids="{0[0]}-{0[1]}".format)
def test_every_pair(checkpoints: dict[tuple[str, int], str], reader: tuple[str, int]) -> None:
    check(checkpoints, reader, EVERYWHERE)
