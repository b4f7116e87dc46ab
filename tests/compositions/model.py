"""What every composition trains: a transformer with attention, experts, tied weights and a parameter without dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from stratagem_expert.conformance import SmallMixture
from tensor_models import LENGTH, VOCABULARY, WIDTH, Attention, Sentences
from torch import Tensor, nn
from torch.optim import Optimizer
from whole_optimizers import Whitening

BLOCKS = 2


class Block(nn.Module):
    """Attention, and a mixture of experts beside one that all tokens share."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mixture = Attention(), SmallMixture(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mixture(self.norm2(x))


class Net(nn.Module):
    """The head has the weight of the embedding.

    Args:
        in_sequence: blocks are an `nn.Sequential`, which the axis `pipeline` divides into stages.
    """

    def __init__(self, in_sequence: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 4)
        blocks = [Block() for _ in range(BLOCKS)]
        self.blocks = nn.Sequential(*blocks) if in_sequence else nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.scale = nn.Parameter(torch.tensor(1.5))
        nn.init.normal_(self.tokens.weight, std=0.3)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places
        if isinstance(self.blocks, nn.Sequential):
            x = self.blocks(x)
        else:
            for block in self.blocks:
                x = block(x)
        logits: Tensor = self.head(self.norm(x)) * self.scale
        return logits


PLAN: dict[str, Any] = {
    "blocks.*.attention.[qkv]": "colwise",
    "blocks.*.attention.o": "rowwise",
    "blocks.*.mixture.shared": "colwise_gathered",
    "tokens": "rowwise",
    "head": "colwise_gathered",
}
"""How the axis `tensor` splits the net."""
CUT: dict[str, Any] = {"blocks.*": "block"}
"""Where the axis `context` cuts sequences."""


@dataclass(frozen=True)
class Task(Sentences):
    """Predict the next token."""

    global_batch: int = 32
    samples: int = 128
    in_sequence: bool = False

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return Net(self.in_sequence)

    def optimizers(self, net: nn.Module) -> list[Optimizer]:
        if self.kind == "whitening":
            return [Whitening([p for p in net.parameters() if p.dim()])]
        return list(super().optimizers(net))
