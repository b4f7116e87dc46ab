"""What a process of xla_fsdp with spmd=False does for tests of stratagem-xla; runs in a worker of the kit."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.trained import RecipeModule, train
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import Dataset, TensorDataset

import stratagem

TOKENS, WIDTH = 13, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.down(torch.relu(self.up(self.norm(x))))


class Tied(nn.Module):
    """Blocks that are units, an embedding and a head with one matrix, as GPT-2 has them, and a buffer.

    Every second training step uses the spare head, so that the other's bias gets no gradient then.
    """

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embedding.weight
        self.spare = nn.Linear(WIDTH, TOKENS)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        if self.training:
            self.calls += 1
            self.mean.lerp_(x.detach().mean(0), 0.1)
            x = x - 0.1 * self.mean
        return self.spare(x) if self.calls % 2 else self.head(x)


@dataclass(frozen=True)
class Tokens(Recipe):
    """20 steps of momentum and weight decay in two groups."""

    adaptive: bool = False

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return Tied()

    def dataset(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(5)
        tokens = torch.randint(TOKENS, (self.samples,), generator=generator)
        return TensorDataset(tokens, (tokens * 5 + 1) % TOKENS)

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        decayed = [parameter for parameter in net.parameters() if parameter.dim() > 1]
        others = [parameter for parameter in net.parameters() if parameter.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others}]
        if self.adaptive:
            return [torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)]
        return [torch.optim.SGD(groups, lr=0.1, momentum=0.9)]


def train_all(subject: StrategySubject, recipes: Sequence[Recipe]) -> list[Trained]:
    return [train(subject, recipe) for recipe in recipes]


class Look(stratagem.Callback):
    """Notes what the user's module and its optimizer have in the middle of a run."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.is_stepped: list[bool] = []
        self.wrappers = 0

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.shapes = {name: tuple(p.shape) for name, p in module.net.named_parameters()}
        groups = trainer.prepared.optimizers[0].param_groups
        stepped = {id(parameter) for group in groups for parameter in group["params"]}
        self.is_stepped = [id(parameter) in stepped for parameter in module.parameters()]
        self.wrappers = len(trainer.prepared._wrapped.wrappers)


@dataclass
class Seen:
    """What a user finds in a module, during training and after it."""

    during: dict[str, tuple[int, ...]]
    """Shapes by name."""
    is_stepped: list[bool]
    """For each parameter that the module shows."""
    wrappers: int
    after: dict[str, tuple[int, ...]]
    tied: bool
    left: list[str]
    """Attributes that modules have in excess."""
    output: Tensor
    """Of the module itself, called afterwards."""
    trained: dict[str, Tensor]


def look(subject: StrategySubject, recipe: Recipe) -> Seen:
    seen = Look()
    module = RecipeModule(recipe, recipe.global_batch)
    before = {name: set(each.__dict__) for name, each in module.net.named_modules()}
    subject.trainer(max_steps=2, callbacks=[seen]).fit(module)
    net: Any = module.net
    left = [
        f"{name}.{key}"
        for name, each in net.named_modules()
        for key in sorted(set(each.__dict__) - before[name])
    ]
    net.eval()
    with torch.no_grad():
        output = net(torch.arange(TOKENS, device="xla")).cpu()
    return Seen(
        seen.shapes,
        seen.is_stepped,
        seen.wrappers,
        {name: tuple(parameter.shape) for name, parameter in net.named_parameters()},
        net.head.weight is net.embedding.weight,
        left,
        output,
        {name: value.cpu() for name, value in net.state_dict().items()},
    )


def own_loops(subject: StrategySubject) -> tuple[list[float], list[float]]:
    """The losses of a loop under the strategy, and of the same in plain torch."""
    return subject.runtime(seed=3).launch(_loops, quiet=True)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.memory = nn.LSTM(4, 5, batch_first=True)
        self.last = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.memory(torch.relu(self.first(x)))
        return self.last(hidden[:, -1])


def _loops(runtime: stratagem.Runtime) -> tuple[list[float], list[float]]:
    torch.manual_seed(3)
    net = Recurrent()
    plain = copy.deepcopy(net)
    x, y = torch.randn(8, 6, 3), torch.randn(8, 1)
    # Adagrad has states before its first step.
    theirs = torch.optim.Adagrad(plain.parameters(), lr=0.05, initial_accumulator_value=0.1)
    alone = _loop(plain, theirs, theirs, Tensor.backward, x, y, _clip(plain))
    ours = torch.optim.Adagrad(net.parameters(), lr=0.05, initial_accumulator_value=0.1)
    model, optimizer = runtime.setup(net, ours)

    def clip() -> None:
        runtime.clip(optimizer, max_norm=0.3)

    there = (x.to(runtime.device), y.to(runtime.device))
    together = _loop(model, ours, optimizer, runtime.backward, *there, clip)
    return together, alone


def _clip(plain: nn.Module) -> Any:
    return lambda: nn.utils.clip_grad_norm_(plain.parameters(), 0.3)


def _loop(
    model: Any, groups: Optimizer, optimizer: Any, backward: Any, x: Tensor, y: Tensor, clip: Any
) -> list[float]:
    """12 steps; those in the middle with the first layer frozen, and a look at the loss before each step."""
    losses = []
    for step in range(12):
        model.first.requires_grad_(not 4 <= step < 8)
        loss = F.mse_loss(model(x), y)
        backward(loss)
        with _evaluating(model), torch.no_grad():
            losses.append(float(F.mse_loss(model(x), y)))
        clip()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    model.eval()
    yield
    model.train()


def refused(subject: StrategySubject, recipe: Recipe) -> str:
    """Why a run is refused; empty where it isn't."""
    try:
        train(subject, recipe)
    except stratagem.UsageError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def all_refused(subject: StrategySubject, recipes: Sequence[Recipe]) -> list[str]:
    """Why runs are refused."""
    return [refused(subject, recipe) for recipe in recipes]


def warnings_of(subject: StrategySubject, recipe: Recipe) -> list[str]:
    """What a run warns of."""
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        train(subject, recipe)
    return [str(warning.message) for warning in reported]


@dataclass(frozen=True)
class Shaped(Tokens):
    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.Adafactor(net.parameters(), lr=1e-2)]


@dataclass(frozen=True)
class Half(Tokens):
    def net(self) -> nn.Module:
        net = super().net()
        net.spare.to(torch.bfloat16)
        return net


def cut_as_torch_xla_does(subject: StrategySubject) -> list[tuple[str, float]]:
    """By parameter, process and way of cutting, how far our shards are from those of torch_xla."""
    return subject.runtime().launch(_shards, quiet=True)


def _shards(runtime: stratagem.Runtime) -> list[tuple[str, float]]:
    from stratagem_xla.flat_shards import fill
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    apart = []
    for by_rows in (False, True):
        for rank in range(3):
            torch.manual_seed(3)
            net = nn.Sequential(nn.Linear(17, 10), nn.Linear(10, 40))
            wholes = [parameter.detach().clone() for parameter in net.parameters()]
            wrapper: Any = XlaFullyShardedDataParallel(
                net,
                sharding_groups=[[0]],
                sharding_rank=rank,
                sharding_world_size=3,
                shard_param_on_dim_0=by_rows,
            )
            for theirs, given in zip(wrapper.sharded_params, wholes):
                ours = torch.full_like(theirs.cpu(), torch.nan)
                fill(ours, given, rank)
                apart.append(
                    (f"{tuple(given.shape)} {rank} {by_rows}", float((ours - theirs.cpu()).abs().max()))
                )
    return apart
