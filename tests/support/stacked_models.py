"""A small transformer as a stack of layers, which a pipeline cuts into stages and other axes shard and split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from stratagem_sharding.traffic import watch_traffic
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.trained import net_weights, train
from tensor_models import LENGTH, VOCABULARY, WIDTH, Block, Sentences
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.data import DataLoader
from whole_optimizers import WholeSteps

import stratagem
from stratagem import LossSum

SPLIT: dict[str, Any] = {
    "net.*.attention.[qkv]": "colwise",
    "net.*.attention.o": "rowwise",
    "net.*.feed.up": "colwise",
    "net.*.feed.down": "rowwise",
}


class Tokens(nn.Module):
    """Tokens and places to vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 4)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.tokens(tokens) * self.scale + self.places
        return x


class Head(nn.Module):
    """A norm, and scores of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(x))
        return scores


@dataclass(frozen=True)
class Stacked(Sentences):
    """Predict the next token by a stack of five layers."""

    steps: int | None = 6
    samples: int = 192
    global_batch: int = 16
    tied: bool = False

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            net = nn.Sequential(Tokens(), Block(), Block(), Block(), Head())
            if self.tied:
                first: Any = net[0]
                last: Any = net[4]
                nn.init.normal_(first.tokens.weight, std=0.3)
                last.head.weight = first.tokens.weight
        return net


SPLIT_OUTSIDE: dict[str, Any] = {
    **{name.replace("net.*", "net.blocks.*"): style for name, style in SPLIT.items()},
    "net.tokens": "rowwise",
    "net.head": "colwise_gathered",
}


class Surrounded(nn.Module):
    """A transformer whose blocks alone are a stack; embeddings and head are on every stage."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 4)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY)
        nn.init.normal_(self.tokens.weight, std=0.3)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(self.tokens(tokens) + self.places))
        return scores


@dataclass(frozen=True)
class Outside(Stacked):
    """Predict the next token by a model of which a part isn't in stages."""

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return Surrounded()


@dataclass(frozen=True)
class WholeStacked(WholeSteps):
    """The same stack, by optimizers that need whole tensors."""

    steps: int | None = 6
    max_norm: float | None = 0.5

    def net(self) -> nn.Module:
        return Stacked().net()


Variant = tuple[Mapping[str, Any], Recipe]
"""Options of the axis pipeline, and what to train."""


def train_variants(subject: StrategySubject, variants: Sequence[Variant]) -> list[Trained]:
    """Train one after the other. Run by every rank."""
    return [train(with_pipeline(subject, options), recipe) for options, recipe in variants]


def with_pipeline(subject: StrategySubject, options: Mapping[str, Any]) -> StrategySubject:
    """Return the subject with options of its axis pipeline."""
    axis_options = {**subject.options["axis_options"], "pipeline": dict(options)}
    return replace(subject, options={**subject.options, "axis_options": axis_options})


class Held(stratagem.Callback):
    """Counts what is in this rank's memory after a step: elements of parameters, and of moments."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        (optimizer,) = trainer.prepared.optimizers
        moments = [state["exp_avg"] for state in optimizer.state.values()]
        self.parameters, self.moments = _elements(module.parameters()), _elements(moments)


def _elements(tensors: Any) -> int:
    local = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    return sum(each.numel() for each in local if not each.is_meta)


def held(subject: StrategySubject, recipe: Recipe) -> tuple[int, int]:
    """Return how many elements of parameters and of moments this rank has. Run by every rank."""
    counted = Held()
    train(subject, recipe, [counted], max_steps=1)
    return counted.parameters, counted.moments


class Gathered(stratagem.Callback):
    """Counts the bytes of parameters that this rank gathers, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.end: Callable[[], None] = lambda: None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(0)
        self.end = watch_traffic(self.count)

    def on_train_batch_end(self, trainer: Any, module: Any, output: Any, batch: Any, batch_idx: int) -> None:
        self.end()

    def count(self, collective: str, size: int) -> None:
        """Add a message's bytes."""
        # Each layer has more than a KiB. Checks of the strategy gather smaller messages.
        self.batches[-1] += size if collective == "all_gather" and size > 1024 else 0


def gathered(subject: StrategySubject, recipe: Recipe) -> list[int]:
    """Return how many bytes of parameters this rank gathers in each batch. Run by every rank."""
    counted = Gathered()
    train(subject, recipe, [counted])
    return counted.batches


class Uneven(stratagem.Module):
    """Each data rank has batches of its own sizes, which change from step to step; some tokens count.

    Args:
        parts: among how many data ranks the samples are dealt.
        steps: as many as there are.
    """

    def __init__(self, parts: int, steps: int) -> None:
        super().__init__()
        self.net, self.parts, self.steps = Stacked().net(), parts, steps

    def batch(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        """Return tokens, (samples, length), and which of them count."""
        generator = torch.Generator().manual_seed(100 * step + part)
        rows = 4 + (step * (part + 1)) % 4
        tokens = torch.randint(VOCABULARY, (rows, LENGTH), generator=generator)
        return tokens, torch.rand(tokens.shape, generator=generator) < 0.9 / (part + 1)

    def losses(self, batch: tuple[Tensor, Tensor]) -> LossSum:
        """Return a sum of losses, and how many tokens count."""
        tokens, counts = batch
        targets = (tokens * 5 + 1) % VOCABULARY
        losses = F.cross_entropy(self.net(tokens).flatten(0, 1), targets.flatten(), reduction="none")
        return LossSum((losses * counts.flatten()).sum(), counts.sum())

    def training_step(self, batch: Any, batch_idx: int) -> LossSum:
        return self.losses(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.losses(batch).loss)

    def test_dataloader(self) -> Any:
        return self.train_dataloader()

    def train_dataloader(self) -> Any:
        part = self.trainer.runtime.collectives.data.rank
        return DataLoader([self.batch(step, part) for step in range(self.steps)], batch_size=None)


class Weights(stratagem.Callback):
    """Keeps the net's weights, whole."""

    order = 99

    def __init__(self, folder: str) -> None:
        self.path = f"{folder}/uneven"
        self.whole: dict[str, Tensor] = {}

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        self.whole = net_weights(trainer, self.path)


def fit_twice(subject: StrategySubject) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights after a fit, and those that a test in the same processes has. Run by every rank."""
    module, kept = Uneven(subject.shares(), 2), Weights(subject.folder)
    quiet: dict[str, Any] = {"use_distributed_sampler": False, "callbacks": [kept]}
    subject.trainer(max_epochs=1, **quiet).fit(module)
    trained = kept.whole
    subject.trainer(**quiet).test(module)
    return trained, kept.whole


def train_uneven(subject: StrategySubject, steps: int, accumulate: int) -> dict[str, Tensor]:
    """Return the weights that training comes to. Run by every rank."""
    kept = Weights(subject.folder)
    trainer = subject.trainer(
        max_epochs=1,
        callbacks=[kept],
        accumulate_grad_batches=accumulate,
        gradient_clip_val=0.1,
        use_distributed_sampler=False,
    )
    trainer.fit(Uneven(subject.shares(), steps))
    return kept.whole


def plain_uneven(parts: int, steps: int, accumulate: int) -> dict[str, Tensor]:
    """The same in plain torch: gradients of Σ loss / Σ weight over all parts and micro-batches of a step."""
    module = Uneven(parts, steps)
    optimizer = module.configure_optimizers()
    for start in range(0, steps, accumulate):
        optimizer.zero_grad()
        given = [(step, part) for step in range(start, start + accumulate) for part in range(parts)]
        losses, weights = zip(*(module.losses(module.batch(*each)) for each in given))
        (sum(losses) / sum(weights)).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
    return {name: value.detach().clone() for name, value in module.net.state_dict().items()}
