"""Layers in float8 within blocks that torch.compile compiled."""

from __future__ import annotations

import pytest
import torch
from stratagem_compile import Compile
from torch import nn

from stratagem import Runtime

STEPS = 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = value + self.down(nn.functional.gelu(self.up(self.norm(value))))
        return result


def train(runtime: Runtime) -> list[float]:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = nn.Sequential(*(Block() for _ in range(3)))
    module, optimizer = runtime.setup(net, torch.optim.AdamW(net.parameters(), 3e-3))
    generator = torch.Generator().manual_seed(runtime.rank)
    losses = []
    for _ in range(STEPS):
        value = torch.randn(8 + runtime.rank, 32, generator=generator)
        loss = (module(value).float() - value.tanh()).square().mean()
        runtime.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("precision", ["float8-emulated", "float8-rowwise-emulated"])
def test_compiled_blocks_have_the_numbers_of_eager_ones(strategy: str, precision: str) -> None:
    def losses(precision: str, *plugins: Compile) -> list[float]:
        runtime = Runtime(strategy, "cpu", 2, precision=precision, plugins=list(plugins))
        return runtime.launch(train, quiet=True)

    eager = losses(precision)
    # Inductor fuses operations and rounds less, so only what is traced is compared.
    assert losses(precision, Compile("blocks", backend="aot_eager")) == eager
    assert losses("bf16-mixed") != eager
