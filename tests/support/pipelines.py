"""What tests of the pipeline train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from language_models import LanguageModel, llama
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.same import expect_same
from stratagem_testing.trained import RecipeModule, naming, plainly, train
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem

OPTIONS = {"timeout_s": 60}


def one_copy(world_size: int) -> int:
    return 1


def two_copies(world_size: int) -> int:
    return 2


def seeded(make: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return make()


def stack() -> nn.Sequential:
    """Eleven layers of several costs, among them some without parameters, in place, and with views."""
    return nn.Sequential(
        nn.Linear(6, 32),
        nn.ReLU(inplace=True),
        nn.Unflatten(1, (4, 8)),
        nn.LayerNorm(8),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.Tanh(),
        nn.Linear(16, 16),
        nn.ReLU(inplace=True),
        nn.Linear(16, 16),
        nn.Linear(16, 4),
    )


@dataclass(frozen=True)
class Stack(Recipe):
    def net(self) -> nn.Module:
        return seeded(stack)


class TiedEnds(nn.Sequential):
    """Its first and its last layer share one matrix."""

    def __init__(self) -> None:
        first, last = nn.Linear(6, 4, bias=False), nn.Linear(6, 4)
        last.weight = first.weight
        super().__init__(first, nn.Tanh(), nn.Linear(4, 6), last)


@dataclass(frozen=True)
class Tied(Recipe):
    steps: int | None = 8

    def net(self) -> nn.Module:
        return seeded(TiedEnds)


class Around(nn.Module):
    """Parameters before and after the pipeline, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.net = stack()
        self.after = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.after(self.net(torch.tanh(self.before(x * self.scale)))) * self.scale
        return scores


@dataclass(frozen=True)
class Surrounded(Recipe):
    steps: int | None = 8
    max_norm: float | None = 0.4

    def net(self) -> nn.Module:
        return seeded(Around)


class Skips(nn.Module):
    """Values go round layers, and dropout must stop in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (
            nn.Linear(6, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 16),
            nn.Linear(22, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.a(x))
        inner = self.c(torch.tanh(self.b(first))) + first
        scores: Tensor = self.d(torch.cat([inner, x], 1))
        return scores


@dataclass(frozen=True)
class Skipping(Recipe):
    steps: int | None = None
    epochs: int | None = 2
    samples: int = 45

    def net(self) -> nn.Module:
        return seeded(Skips)


def two_stages(folder: Path) -> StrategySubject:
    """Return `pipeline` on two ranks, which share one copy."""
    return StrategySubject("pipeline", world_size=2, options=OPTIONS, data_ranks=one_copy, folder=str(folder))


def expect_plain(
    subject: StrategySubject, recipe: Recipe, options: list[dict[str, Any]], tolerance: float = 2e-6
) -> None:
    """Train a recipe with each of some options, and expect the numbers of plain torch."""
    by_rank = subject.run(train_under, recipe, options)
    for index, each in enumerate(options):
        with naming((recipe, each)):
            expect_same([trained[index] for trained in by_rank], plainly(recipe, subject.shares()), tolerance)


def train_under(subject: StrategySubject, recipe: Recipe, options: Sequence[dict[str, Any]]) -> list[Trained]:
    """Train a recipe with one set of options after the other. Run by every rank."""
    return [train(replace(subject, options={**OPTIONS, **each}), recipe) for each in options]


class LateModule(RecipeModule):
    """Constructs its net where a strategy may want it without memory."""

    def __init__(self, recipe: Recipe, batch_size: int) -> None:
        super().__init__(recipe, batch_size)
        del self.net

    def configure_model(self) -> None:
        self.net = self.recipe.net()


def train_late(subject: StrategySubject, recipe: Recipe) -> Trained:
    return train(subject, recipe, module_class=LateModule)


class KeepsGradients(torch.optim.SGD):
    """Drops its gradients after every third step alone: those of the steps between are added up."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.steps % 3 == 0:
            super().zero_grad(set_to_none)


class KeepingTied(Tied):
    def optimizers(self, net: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [KeepsGradients(net.parameters(), lr=0.02, momentum=0.9)]


class KeepingSurrounded(Surrounded):
    def optimizers(self, net: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [KeepsGradients(net.parameters(), lr=0.02, momentum=0.9)]


class Says(RecipeModule):
    """Logs and returns something of every kind, draws random numbers, and counts what it is asked."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        noise = torch.randn(len(batch[0]), 4)
        scores = self.net(batch[0] + noise.sum(1, keepdim=True))
        loss = F.mse_loss(scores, noise)
        self.log("loss", loss)
        self.log("rows", float(len(scores)), reduce_fx="sum")
        self.log_dict({f"many{index}": float(index + batch_idx) for index in range(70)})
        right = (scores.argmax(1) == batch[1]).sum()
        return {
            "loss": loss,
            "scores": scores,
            "right": right,
            "rows": len(scores),
            "kind": "mse",
            "noise": noise,
        }


class Returned(stratagem.Callback):
    """Keeps what steps return, and what was logged."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.logged: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs.append(outputs)
        self.logged.append(dict(trainer.callback_metrics))


class Front(nn.Module):
    """Tokens to vectors, and the rotation of each position."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embed, self.rotary = model.embed_tokens, model.rotary_emb

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embed(ids)
        cos, sin = self.rotary(x, torch.arange(ids.shape[1], device=ids.device).expand_as(ids))
        return x, cos.contiguous(), sin.contiguous()


class Block(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, carried: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        x, cos, sin = carried
        return self.layer(x, attention_mask=None, position_embeddings=(cos, sin)), cos, sin


class Head(nn.Module):
    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.norm, self.head = lm.model.norm, lm.lm_head

    def forward(self, carried: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        scores: Tensor = self.head(self.norm(carried[0]))
        return scores


@dataclass(frozen=True)
class Logits(LanguageModel):
    """Calls its model in training as in prediction."""

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        return next_token_loss(net(input_ids=batch["input_ids"]).logits, batch)


@dataclass(frozen=True)
class StackedLlama(LanguageModel):
    """Llama as a stack of layers that hand on tuples."""

    def net(self) -> nn.Module:
        lm: Any = seeded(llama)
        return nn.Sequential(Front(lm.model), *map(Block, lm.model.layers), Head(lm))

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        return next_token_loss(net(batch["input_ids"]), batch)

    def predict(self, net: nn.Module, batch: Any) -> Tensor:
        scores: Tensor = net(batch["input_ids"])
        return scores


def next_token_loss(scores: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
