"""Fifty small models, each with its data, its optimizer and how it is trained: the clean runs train all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

SAMPLES = 12
"""In a global batch; two ranks with two micro-batches each share them evenly."""
WORDS, LENGTH = 16, 6


@dataclass(frozen=True)
class CleanModel:
    """A model, and how it is trained."""

    name: str
    """Of the class, such as "TwoLayers"."""
    make: Callable[[], nn.Module]
    data: str
    """One of `DATA`."""
    optimizer: Callable[..., Optimizer] = AdamW
    options: dict[str, Any] = field(default_factory=dict)
    """Of the optimizer."""
    accumulate: int = 1
    """Micro-batches per step."""
    limit: float | None = None
    """Of the gradients' norm."""
    schedule: bool = False
    """Whether the learning rate falls with each step."""
    precision: str = "32-true"

    def optimizer_of(self, module: nn.Module) -> Optimizer:
        """Return the optimizer of what isn't frozen."""
        return self.optimizer([each for each in module.parameters() if each.requires_grad], **self.options)

    def batches(self, steps: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Yield the micro-batches of each step, of inputs and targets."""
        generator = torch.Generator().manual_seed(11)
        for _ in range(steps):
            inputs, targets = DATA[self.data](generator)
            yield list(zip(inputs.chunk(self.accumulate), targets.chunk(self.accumulate)))


MODELS: dict[str, CleanModel] = {}


def clean(data: str, optimizer: Callable[..., Optimizer] = AdamW, **how: Any) -> Callable[[Any], Any]:
    """Put a class into the table."""
    fields = {key: how.pop(key) for key in ("accumulate", "limit", "schedule", "precision") if key in how}

    def put(make: Any) -> Any:
        MODELS[make.__name__] = CleanModel(make.__name__, make, data, optimizer, how, **fields)
        return make

    return put


def _rows(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    rows = torch.randn(SAMPLES, 6, generator=generator) * torch.linspace(0.5, 1.5, SAMPLES)[:, None]
    return rows, torch.randn(SAMPLES, 3, generator=generator)


def _classes(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return _rows(generator)[0], torch.randint(0, 3, (SAMPLES,), generator=generator)


def _images(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    images = torch.randn(SAMPLES, 2, 8, 8, generator=generator)
    return images, torch.randint(0, 3, (SAMPLES,), generator=generator)


def _signals(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, 2, 16, generator=generator), torch.randn(SAMPLES, 3, generator=generator)


def _tokens(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=generator)
    return tokens, tokens.roll(-1, 1)


def _words(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=generator)
    return tokens, torch.randn(SAMPLES, 3, generator=generator)


def _sequences(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    rows = torch.randn(SAMPLES, LENGTH, 8, generator=generator)
    return rows, torch.randn(SAMPLES, LENGTH, 8, generator=generator)


DATA = {
    "rows": _rows,
    "classes": _classes,
    "images": _images,
    "signals": _signals,
    "tokens": _tokens,
    "words": _words,
    "sequences": _sequences,
}
"""Name → what makes a global batch."""


def loss_of(values: Any, targets: Tensor) -> Tensor:
    """Return the mean loss; of the first value, with half of each other one's square, where there are several."""
    first, *others = values if isinstance(values, tuple) else (values,)
    if targets.is_floating_point():
        loss = F.mse_loss(first.float(), targets)
    else:
        loss = F.cross_entropy(first.float().flatten(0, -2), targets.flatten())
    for other in others:
        loss = loss + other.float().square().mean() / 2
    return loss


# Layers on rows -----------------------------------------------------------------------------------


def _layers(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


@clean("rows", SGD, lr=0.1)
def OneLayer() -> nn.Module:
    return nn.Linear(6, 3)


@clean("rows", SGD, lr=0.1, momentum=0.9)
def TwoLayers() -> nn.Module:
    return _layers(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


@clean("rows", SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, accumulate=2)
def ThreeLayers() -> nn.Module:
    return _layers(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


@clean("classes", Adam, lr=0.01, limit=0.1)
def Classifier() -> nn.Module:
    return _layers(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))


@clean("rows", RMSprop, lr=0.01)
def WithoutBias() -> nn.Module:
    return _layers(nn.Linear(6, 16, bias=False), nn.SiLU(), nn.Linear(16, 3, bias=False))


@clean("rows", Adagrad, lr=0.05)
def Normed() -> nn.Module:
    return _layers(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))


@clean("rows", NAdam, lr=0.01, accumulate=2, limit=0.1)
def RootMeanSquares() -> nn.Module:
    return _layers(nn.Linear(6, 16), nn.RMSNorm(16), nn.SiLU(), nn.Linear(16, 3))


@clean("classes", RAdam, lr=0.01)
def Groups() -> nn.Module:
    return _layers(nn.Linear(6, 16), nn.GroupNorm(4, 16), nn.ELU(), nn.Linear(16, 3))


@clean("rows", Adamax, lr=0.01)
def Slopes() -> nn.Module:
    return _layers(nn.Linear(6, 16), nn.PReLU(16), nn.Linear(16, 8), nn.PReLU(), nn.Linear(8, 3))


@clean("rows", AdamW, lr=0.01, schedule=True)
def Gates() -> nn.Module:
    return _layers(nn.Linear(6, 32), nn.GLU(), nn.Linear(16, 3))


@clean("rows", AdamW, lr=0.01, amsgrad=True)
def Deep() -> nn.Module:
    inner = [each for _ in range(5) for each in (nn.Linear(12, 12), nn.Tanh())]
    return _layers(nn.Linear(6, 12), *inner, nn.Linear(12, 3))


@clean("rows", SGD, lr=0.05, momentum=0.9, schedule=True, accumulate=2, limit=0.5)
class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_layers(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU()) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        for block in self.blocks:
            rows = rows + block(rows)
        return self.head(rows)


@clean("rows")
class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.scale, self.shift = nn.Parameter(torch.full((1,), 1.5)), nn.Parameter(torch.zeros(3))

    def forward(self, rows: Tensor) -> Tensor:
        return self.head((self.body(rows) * self.scale).sin()) + self.shift


@clean("rows", Adam, lr=0.01, weight_decay=0.1)
class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.pair = nn.Linear(6, 5), nn.Linear(6, 4), nn.Bilinear(5, 4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.pair(self.left(rows).tanh(), self.right(rows).tanh())


@clean("rows", AdamW, lr=0.01, accumulate=2)
class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, rows: Tensor) -> Tensor:
        weights = self.router(rows).softmax(1)
        made = torch.stack([expert(rows) for expert in self.experts], 1)
        return self.head((weights[..., None] * made).sum(1).tanh())


@clean("rows", SGD, lr=0.1)
class TwoValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(6, 12), nn.Linear(12, 3), nn.Linear(12, 2)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.body(rows).tanh()
        return self.head(inner), self.other(inner)


# Shared, frozen and other parameters --------------------------------------------------------------


@clean("rows", AdamW, lr=0.01)
class SharedModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, rows: Tensor) -> Tensor:
        inner = self.first(rows)
        for _ in range(3):
            inner = self.inner(inner).tanh()
        return self.head(inner)


@clean("rows", SGD, lr=0.1, momentum=0.9, limit=0.2)
class SharedWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.two.weight = self.one.weight

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.two(self.one(rows).tanh()).tanh())


@clean("rows", AdamW, lr=0.01, weight_decay=0.1)
class FrozenBody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = _layers(nn.Linear(6, 12), nn.Tanh()).requires_grad_(False)
        self.head = nn.Linear(12, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.body(rows))


@clean("rows", AdamW, lr=0.01, accumulate=2)
class FrozenMiddle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 3)
        self.middle.requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.middle(self.first(rows).tanh()).tanh())


@clean("rows", Adam, lr=0.01)
class FrozenBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 3)
        self.body.bias.requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.body(rows).tanh())


@clean("rows", AdamW, lr=0.01)
class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 12).requires_grad_(False)
        self.down, self.up, self.head = (
            nn.Linear(6, 2, bias=False),
            nn.Linear(2, 12, bias=False),
            nn.Linear(12, 3),
        )

    def forward(self, rows: Tensor) -> Tensor:
        return self.head((self.base(rows) + self.up(self.down(rows))).tanh())


@clean("rows", RMSprop, lr=0.01, momentum=0.5, centered=True)
class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 3)
        self.register_buffer("mean", torch.linspace(-0.1, 0.1, 6))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, rows: Tensor) -> Tensor:
        self.steps += 1
        return self.head(self.body(rows - self.mean).tanh())


@clean("rows", SGD, lr=0.1)
class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(6, 6) / 3) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        for weight in self.weights:
            rows = (rows @ weight).tanh()
        return self.head(rows)


@clean("rows", AdamW, lr=0.01)
class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(3, 8) for name in ("left", "right")})
        self.head = nn.Linear(16, 3)

    def forward(self, rows: Tensor) -> Tensor:
        left, right = rows.chunk(2, 1)
        return self.head(torch.cat([self.parts["left"](left), self.parts["right"](right)], 1).relu())


# Convolutions -------------------------------------------------------------------------------------


class Image(nn.Module):
    """Layers on images, their mean over places, and a head."""

    def __init__(self, channels: int, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.head = _layers(*layers), nn.Linear(channels, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images).mean((2, 3)))


@clean("images", SGD, lr=0.1, momentum=0.9)
def Convolution() -> nn.Module:
    return Image(6, nn.Conv2d(2, 6, 3, padding=1), nn.ReLU())


@clean("images", Adam, lr=0.01, accumulate=2)
def TwoConvolutions() -> nn.Module:
    return Image(8, nn.Conv2d(2, 6, 3), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.GELU())


@clean("images", AdamW, lr=0.01, limit=0.1)
def GroupNorm() -> nn.Module:
    return Image(8, nn.Conv2d(2, 8, 3), nn.GroupNorm(2, 8), nn.SiLU())


@clean("images", Adam, lr=0.01)
def InstanceNorm() -> nn.Module:
    return Image(6, nn.Conv2d(2, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU())


@clean("images", SGD, lr=0.1)
class FrozenStatistics(Image):
    """Batch normalization by running statistics, as in fine-tuning."""

    def __init__(self) -> None:
        super().__init__(6, nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.train()

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.layers[1].eval()
        return self


@clean("images", AdamW, lr=0.01)
def Separable() -> nn.Module:
    return Image(8, nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 8, 1), nn.Hardswish())


@clean("images", RMSprop, lr=0.01)
def Transposed() -> nn.Module:
    return Image(4, nn.Conv2d(2, 6, 3, stride=2), nn.Tanh(), nn.ConvTranspose2d(6, 4, 3, stride=2), nn.Tanh())


@clean("signals", Adagrad, lr=0.05, schedule=True)
class Signals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv1d(2, 6, 5, dilation=2), nn.Conv1d(6, 6, 3)
        self.head = nn.Linear(6, 3)

    def forward(self, signals: Tensor) -> Tensor:
        return self.head(self.narrow(self.wide(signals).relu()).relu().amax(2))


@clean("images", AdamW, lr=0.01, accumulate=2)
class Skipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.side, self.head = nn.Conv2d(2, 4, 1), nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        inner = torch.cat([self.up(self.down(images).relu()), self.side(images)], 1)
        return self.head(inner.mean((2, 3)))


# Words --------------------------------------------------------------------------------------------


@clean("words", SGD, lr=0.5)
class MeanOfWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).mean(1))


@clean("words", Adagrad, lr=0.1)
class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(WORDS, 8, mode="mean"), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.bag(tokens).tanh())


@clean("words", AdamW, lr=0.01, accumulate=2)
class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 8, padding_idx=0), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).sum(1).tanh())


@clean("tokens", AdamW, lr=0.01)
class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(WORDS, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(tokens)).tanh())


@clean("tokens", Adam, lr=0.01)
class FrozenWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 8).requires_grad_(False), nn.Linear(8, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


# Sequences ----------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """A recurrent layer, and a head."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), 8)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.layer(rows)[0])


@clean("sequences", SGD, lr=0.1, limit=0.1)
def Elman() -> nn.Module:
    return Recurrent(nn.RNN(8, 10, batch_first=True))


@clean("sequences", Adam, lr=0.01, accumulate=2)
def Gru() -> nn.Module:
    return Recurrent(nn.GRU(8, 10, batch_first=True))


@clean("sequences", RMSprop, lr=0.01)
def Lstm() -> nn.Module:
    return Recurrent(nn.LSTM(8, 10, 2, batch_first=True, bidirectional=True))


class Attention(nn.Module):
    """Causal attention by its own layers."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, rows: Tensor) -> Tensor:
        layers = (self.query, self.key, self.value)
        parts = (layer(rows).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in layers)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


@clean("sequences", AdamW, lr=0.01, limit=0.1)
def OwnAttention() -> nn.Module:
    return _layers(nn.LayerNorm(8), Attention(), nn.Linear(8, 8))


@clean("sequences", SGD, lr=0.1)
class TorchAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 8)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.attention(rows, rows, rows, need_weights=False)[0])


@clean("sequences", AdamW, lr=0.01)
def Encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)


class Block(nn.Module):
    """A block of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.attention, self.two = nn.LayerNorm(8), Attention(), nn.LayerNorm(8)
        self.inner = _layers(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows + self.attention(self.one(rows))
        return rows + self.inner(self.two(rows))


class Language(nn.Module):
    """A small language model with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(WORDS, 8), nn.Embedding(LENGTH, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            rows = block(rows)
        return self.head(self.norm(rows))


@clean("tokens", AdamW, lr=0.01, schedule=True, limit=1.0, accumulate=2)
class LanguageModel(Language):
    pass


@clean("tokens", AdamW, lr=0.01)
class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention, self.head = nn.Embedding(WORDS, 8), Attention(), nn.Linear(8, WORDS)
        angles = torch.arange(LENGTH)[:, None] / 100 ** (torch.arange(8) / 8)
        self.register_buffer("table", angles.cos() * math.sqrt(2), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.attention(self.embed(tokens) * self.table).tanh())


# Mixed precision ----------------------------------------------------------------------------------


@clean("rows", AdamW, lr=0.01, precision="bf16-mixed")
def MixedLayers() -> nn.Module:
    return _layers(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))


@clean("tokens", AdamW, lr=0.01, precision="bf16-mixed")
class MixedLanguageModel(Language):
    pass


@clean("images", SGD, lr=0.1, precision="bf16-mixed", accumulate=2)
def MixedConvolutions() -> nn.Module:
    return Image(6, nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.ReLU())
