"""Language models of sizes that one GPU trains: GPT-2 with 124 million parameters, and a Llama with 1.1 billion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Size:
    """Of a model and of its batches."""

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    length: int
    batch: int


SIZES = {
    "gpt2-124m": Size("gpt2", 12, 768, 12, 12, 3072, 50304, 1024, 8),
    "llama-1b": Size("llama", 16, 2048, 32, 8, 8192, 32000, 1024, 4),
    "gpt2-small": Size("gpt2", 2, 64, 4, 4, 256, 256, 32, 4),
    "llama-small": Size("llama", 2, 64, 4, 2, 256, 256, 32, 4),
}
"""The small ones are to try the measurements without a GPU."""


class Attention(nn.Module):
    """Causal self-attention; groups of heads share keys and values where there are fewer of these.

    Takes and returns floats of shape (batch, length, width).
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        head = size.width // size.heads
        self.heads, self.kv_heads, self.rotary = size.heads, size.kv_heads, size.family == "llama"
        bias = size.family == "gpt2"
        self.query = nn.Linear(size.width, size.heads * head, bias=bias)
        self.key = nn.Linear(size.width, size.kv_heads * head, bias=bias)
        self.value = nn.Linear(size.width, size.kv_heads * head, bias=bias)
        self.out = nn.Linear(size.width, size.width, bias=bias)
        angles = torch.outer(torch.arange(size.length), 10000.0 ** -(torch.arange(0, head, 2) / head))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key = self.key(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        value = self.value(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        if self.rotary:
            query, key = self.rotated(query), self.rotated(key)
        attended = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.heads != self.kv_heads
        )
        return self.out(attended.transpose(1, 2).flatten(-2))

    def rotated(self, x: Tensor) -> Tensor:
        """Rotate pairs of each head's features by their position (Su et al., 2021)."""
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class GatedLayer(nn.Module):
    """SwiGLU (Shazeer, 2020)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a residual connection."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        norm = nn.LayerNorm if size.family == "gpt2" else nn.RMSNorm
        self.norm1, self.norm2 = norm(size.width), norm(size.width)
        self.attention = Attention(size)
        self.feed_forward: nn.Module = GatedLayer(size)
        if size.family == "gpt2":
            self.feed_forward = nn.Sequential(
                nn.Linear(size.width, size.hidden), nn.GELU("tanh"), nn.Linear(size.hidden, size.width)
            )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Decoder(nn.Module):
    """A causal language model. Takes tokens of shape (batch, length), int64, and returns its mean loss on them."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width) if size.family == "gpt2" else None
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = (nn.LayerNorm if size.family == "gpt2" else nn.RMSNorm)(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.apply(_initialize)
        if size.family == "gpt2":
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def _initialize(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)


def decoder(name: str, device: torch.device, seed: int = 0) -> Decoder:
    """Return a model on a device, with the weights of a seed."""
    has_generator = device.type not in ("cpu", "meta")
    with torch.random.fork_rng(
        [device.index] if has_generator else [], device_type=device.type if has_generator else "cuda"
    ):
        torch.manual_seed(seed)
        with device:
            return Decoder(SIZES[name])


def compiler(device: torch.device) -> str:
    """Return the backend of `torch.compile` for a device: Inductor has none for one that it doesn't know."""
    return "inductor" if device.type in ("cpu", "cuda") else "aot_eager"


def batches(name: str, steps: int, pinned: bool = True) -> DataLoader[Any]:
    """Return a loader of so many batches of random tokens, of shape (batch, length), in pinned memory."""
    size = SIZES[name]
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(size.vocabulary, (steps * size.batch, size.length), generator=generator)
    return DataLoader(TensorDataset(tokens), size.batch, pin_memory=pinned)
