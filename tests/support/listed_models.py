"""Models whose layers are in an `nn.ModuleList`, which they call one after the other themselves, as recipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from language_models import LanguageModel
from pipelines import seeded
from stacked_models import Weights
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe, train_plainly
from stratagem_testing.trained import RecipeModule, batch_size
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 6


class Layer(nn.Module):
    """What it computes depends on everything that it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, x: Tensor, keep: Tensor, *, bias: Tensor, scales: tuple[Tensor, float], mode: str | None = None
    ) -> Tensor:
        new = self.linear(x) + bias
        scale, factor = scales
        new = torch.where(keep, new, new * factor) * scale
        return x + (torch.tanh(new) if mode == "tanh" else new)


class Listed(nn.Module):
    """Layers get a mask per sample, a mask per feature, a learned bias, and numbers of their own.

    There are as many features as a part of a batch has rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, WIDTH)
        self.bias = nn.Parameter(torch.randn(1, WIDTH))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))
        self.blocks = nn.ModuleList(Layer() for _ in range(4))
        self.after = nn.Linear(WIDTH, 4)

    def layers(self) -> Any:
        return self.blocks

    def forward(self, x: Tensor) -> Tensor:
        keep = x[:, :1] > 0
        bias = self.bias * 2
        x = self.before(x)
        for number, block in enumerate(self.layers()):
            mode = "tanh" if number % 2 else None
            x = block(x, keep, bias=bias, scales=(self.scale, 0.1 * number), mode=mode)
        scores: Tensor = self.after(x)
        return scores


@dataclass(frozen=True)
class ListedLayers(Recipe):
    """In parts of as many rows as there are features; the last batch of an epoch is smaller."""

    steps: int | None = None
    epochs: int | None = 2
    samples: int = 12 * 5 + 10
    global_batch: int = 12
    kind: str = "Listed"
    learning_rate: float = 0.05

    def net(self) -> nn.Module:
        return seeded(KINDS[self.kind])

    def optimizers(self, net: nn.Module) -> Any:
        return [torch.optim.SGD(net.parameters(), lr=self.learning_rate, momentum=0.9)]


class Encoder(nn.Module):
    """Torch's own stack of layers, with a mask per position, and one per sample and position."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(1, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.stack = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.after = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        padding = torch.zeros(x.shape).masked_fill(x > 1, float("-inf")) * (torch.arange(x.shape[1]) > 0)
        padding = padding.nan_to_num(0.0, neginf=float("-inf"))
        encoded = self.stack(
            self.before(x[:, :, None]), mask=causal, src_key_padding_mask=padding, is_causal=True
        )
        scores: Tensor = self.after(encoded.mean(1))
        return scores


class Blocks(nn.Module):
    """The same layers, called in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(1, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.before(x[:, :, None])
        for block in self.blocks:
            y = block(y, src_mask=mask)
        scores: Tensor = self.after(y.mean(1))
        return scores


class Reversed(Listed):
    def layers(self) -> Any:
        return list(self.blocks)[::-1]


class Shortened(Listed):
    def layers(self) -> Any:
        return self.blocks[:3]


class Unfinished(Listed):
    """Goes on with what it entered the layers with."""

    def forward(self, x: Tensor) -> Tensor:
        keep, y = x[:, :1] > 0, self.before(x)
        self.blocks[0](y, keep, bias=self.bias, scales=(self.scale, 0.1))
        return self.after(y)


class Twice(Listed):
    """Has a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks.append(self.blocks[0])


class Apart(Listed):
    """Its layers get the same, and are added up."""

    def forward(self, x: Tensor) -> Tensor:
        keep, y = x[:, :1] > 0, self.before(x)
        outputs = [each(y, keep, bias=self.bias, scales=(self.scale, 0.1)) for each in self.blocks]
        return self.after(sum(outputs))


class Added(Listed):
    """What entered is added before each layer."""

    def forward(self, x: Tensor) -> Tensor:
        keep, y = x[:, :1] > 0, self.before(x)
        first = y
        for block in self.blocks:
            y = block(y + first, keep, bias=self.bias, scales=(self.scale, 0.1))
        return self.after(y)


class Collected(Listed):
    """Its loss depends on the output of every layer."""

    def forward(self, x: Tensor) -> Tensor:
        keep, y, all_outputs = x[:, :1] > 0, self.before(x), []
        for block in self.blocks:
            y = block(y, keep, bias=self.bias, scales=(self.scale, 0.1))
            all_outputs.append(y)
        return self.after(torch.stack(all_outputs).mean(0))


class Unsendable(Listed):
    """Layers get an object of the model's."""

    def forward(self, x: Tensor) -> Tensor:
        keep, y = x[:, :1] > 0, self.before(x)
        for block in self.blocks:
            y = block(y, keep, bias=self.bias, scales=(self.scale, 0.1), mode=self)
        return self.after(y)


class Scalar(Listed):
    """Layers get a tensor without a dimension."""

    def forward(self, x: Tensor) -> Tensor:
        keep, y = x[:, :1] > 0, self.before(x)
        for block in self.blocks:
            y = block(y, keep, bias=self.bias.sum(), scales=(self.scale, 0.1))
        return self.after(y)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> tuple[Tensor, Tensor]:
        x = x[0] if isinstance(x, tuple) else x
        return self.linear(x), x


class Pairs(nn.Module):
    """Its layers return pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Pair() for _ in range(4))
        self.after = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Any = x
        for block in self.blocks:
            y = block(y)
        return self.after(y[0])


class Hooked(Listed):
    """A hook collects what each layer computes."""

    def __init__(self) -> None:
        super().__init__()
        self.collected: list[Tensor] = []
        self.hook(self.blocks)

    def hook(self, blocks: Any) -> None:
        for block in blocks:
            block.linear.register_forward_hook(self.collect)

    def collect(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.collected.append(output)

    def forward(self, x: Tensor) -> Tensor:
        self.collected = []
        return super().forward(x) + sum(each.pow(2).mean() for each in self.collected)


class Hooking(Hooked):
    """Registers it when it is called first, as transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = True

    def hook(self, blocks: Any) -> None:
        if getattr(self, "waiting", False):
            super().hook(blocks)
            self.waiting = False

    def forward(self, x: Tensor) -> Tensor:
        self.hook(self.blocks)
        return super().forward(x)


class KeepingLayer(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.penalties: dict[str, Any] = {"l2": 0.0}

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        output = super().forward(x, *args, **kwargs)
        self.penalties = {"l2": output.pow(2).mean()}
        return output


class Keeping(Listed):
    """Adds up what its layers keep for the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(KeepingLayer() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + sum(block.penalties["l2"] for block in self.blocks)


class NotingLayer(Layer):
    def forward(self, x: Tensor, *args: Any, notes: dict[str, Any], **kwargs: Any) -> Tensor:
        notes["count"] = notes.get("count", 0) + 1
        return super().forward(x, *args, **kwargs) * notes["count"]


class Noting(Listed):
    """Its layers share a dict, which each of them changes."""

    first_notes: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(NotingLayer() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        keep, y, notes = x[:, :1] > 0, self.before(x), dict(self.first_notes)
        for block in self.blocks:
            y = block(y, keep, bias=self.bias, scales=(self.scale, 0.1), notes=notes)
        return self.after(y)


class Counting(Noting):
    """The dict has what they change from the beginning."""

    first_notes: ClassVar[dict[str, Any]] = {"count": 0}


class Beginning(nn.Module):
    """Computes from what entered the first layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x) + first)


class InPlaceBeginning(Beginning):
    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        return x.add_(torch.tanh(self.linear(x) + first))


class Skipping(Listed):
    """All layers get what entered the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.block() for _ in range(4))

    def block(self) -> nn.Module:
        return Beginning()

    def forward(self, x: Tensor) -> Tensor:
        first = y = torch.sigmoid(self.before(x))
        for block in self.blocks:
            y = block(y, first)
        return self.after(y)


class InPlace(Skipping):
    """The first one changes it."""

    def block(self) -> nn.Module:
        return InPlaceBeginning()


class Branched(Listed):
    """Its layers get a mask where a sample of the batch asks for it."""

    def forward(self, x: Tensor) -> Tensor:
        keep = x[:, :1] > 0 if bool((x[:, 0] > 1.5).any()) else torch.ones(1, 1, dtype=torch.bool)
        y = self.before(x)
        for block in self.blocks:
            y = block(y, keep, bias=self.bias, scales=(self.scale, 0.1))
        return self.after(y)


KINDS = {
    each.__name__: each
    for each in (
        Listed,
        Encoder,
        Blocks,
        Reversed,
        Shortened,
        Unfinished,
        Twice,
        Apart,
        Added,
        Collected,
        Unsendable,
        Scalar,
        Hooked,
        Keeping,
        Noting,
        Counting,
        Skipping,
        InPlace,
        Hooking,
        Pairs,
        Branched,
    )
}


def train_twice(subject: StrategySubject, recipe: Recipe) -> dict[str, Tensor]:
    """Return the weights after one fit and another of the same module, by optimizers of their own. For all ranks."""
    module = RecipeModule(recipe, batch_size(subject, recipe))
    weights = Weights(subject.folder)
    for _ in range(2):
        subject.trainer(max_steps=recipe.steps, callbacks=[weights]).fit(module)
    return weights.whole


def plain_twice(recipe: Recipe, shares: int) -> dict[str, Tensor]:
    """The same in plain torch."""
    net = recipe.net()
    train_plainly(recipe, shares, net)
    return train_plainly(recipe, shares, net).weights


@dataclass(frozen=True)
class PaddedModel(LanguageModel):
    """Sentences of several lengths, padded: no token's loss is of the padding."""

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        tokens = batch["input_ids"]
        lengths = 4 + tokens[:, :1] % (tokens.shape[1] - 4)
        mask = (torch.arange(tokens.shape[1], device=tokens.device) < lengths).long()
        scores = net(input_ids=tokens, attention_mask=mask).logits
        losses = F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        return (losses * mask[:, 1:].flatten()).mean()
