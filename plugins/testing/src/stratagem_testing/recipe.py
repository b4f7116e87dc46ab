"""`Recipe`: a training that runs once under a strategy and once in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import Dataset, TensorDataset, default_collate

from stratagem import ShardedSampler
from stratagem.sdk.tensors import map_tensors
from stratagem_testing.record import TrainingRecord
from stratagem_testing.reference import ReferenceLoop, Schedule
from stratagem_testing.subject import SEED


@dataclass(frozen=True)
class Recipe:
    """A small classifier on random data. Derive from it, and override what a check is about.

    Both sides call its methods, so that any difference comes from the strategy.
    """

    steps: int | None = 20
    """Number of optimizer steps; None is as many as `epochs` have."""
    epochs: int | None = None
    global_batch: int = 16
    """Number of samples per optimizer step, over all ranks and micro-batches."""
    accumulate: int = 1
    """Number of micro-batches per optimizer step."""
    samples: int = 160
    max_norm: float | None = None
    max_value: float | None = None
    precision: str = "32-true"
    closure: bool = False
    """Whether the optimizer calls a closure to evaluate the loss, several times per step."""
    manual: bool = False
    """Whether `manual_step` makes the step."""
    monitored: bool = False
    """Whether a scheduler takes the epoch's mean loss."""

    def net(self) -> nn.Module:
        """Return a net with the same initial parameters each time, regardless of the generators' state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            # Four layers, so that a pipeline of four ranks has one each. Two of the layers have no parameters.
            return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4), nn.Identity())

    def dataset(self) -> Dataset[Any]:
        """Return samples of (6 numbers, one of 4 classes)."""
        generator = torch.Generator().manual_seed(11)
        x = torch.randn(self.samples, 6, generator=generator)
        return TensorDataset(x, (x @ torch.randn(6, 4, generator=generator)).argmax(1))

    collate: Callable[[list[Any]], Any] = default_collate

    def before_batch(self, net: nn.Module, index: int) -> None:
        """Called before each micro-batch, outside of its step."""

    def skips(self, index: int) -> bool:
        """Return whether the step of micro-batch `index` returns None."""
        return False

    def loss(self, net: nn.Module, batch: Any) -> Tensor | None:
        """Return the mean loss of a batch; None if it has none."""
        return F.cross_entropy(net(batch[0]), batch[1])

    def manual_step(
        self, net: nn.Module, batch: Any, optimizers: Sequence[Any], backward: Callable[[Tensor], Any]
    ) -> Tensor:
        """Run backward and step manually, and return a loss."""
        raise NotImplementedError

    def predict(self, net: nn.Module, batch: Any) -> Tensor:
        """Return the net's output for a batch, one row per sample."""
        predicted: Tensor = net(batch[0])
        return predicted

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        """Return the optimizers."""
        # Unlike Adam's, the steps of SGD scale with the gradients, so that a wrong scale of gradients shows.
        return [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)]

    def stepped_by(
        self, net: nn.Module, replaced: Callable[[Optimizer], Optimizer] | None
    ) -> list[Optimizer]:
        """Return `optimizers`, each replaced by `replaced` if that is given."""
        return [replaced(each) if replaced else each for each in self.optimizers(net)]

    def schedules(self, optimizers: Sequence[Optimizer]) -> Sequence[Schedule]:
        """Return the learning rate schedulers."""
        return ()


@dataclass(kw_only=True)
class Trained(TrainingRecord):
    """The result of training a recipe, on one rank."""

    losses: list[float]
    """Loss of each micro-batch: the mean over its samples on this rank."""
    outputs: Tensor
    """The trained net's output for the first 8 samples on this rank."""
    rates: list[list[float]]
    """Learning rates of all parameter groups of all optimizers, after each optimizer step."""


def train_plainly(
    recipe: Recipe,
    shares: int = 1,
    net: nn.Module | None = None,
    replaced: Callable[[Optimizer], Optimizer] | None = None,
) -> Trained:
    """Train in this process with plain torch.

    Args:
        recipe: what to train.
        shares: number of ranks that share the samples. An epoch is filled up to a multiple of it.
        net: net to train further; by default a new one.
        replaced: replaces each optimizer by another.
    """
    torch.manual_seed(SEED)
    cast = _casting(recipe.precision)
    net = prepared_net(recipe) if net is None else cast(net).train()
    optimizers = recipe.stepped_by(net, replaced)
    loop = ReferenceLoop(
        optimizers,
        recipe.schedules(optimizers),
        max_norm=recipe.max_norm,
        max_value=recipe.max_value,
        scaler=torch.amp.GradScaler("cpu", enabled=recipe.precision == "16-mixed"),
        closure=recipe.closure,
    )

    def losses_of(batch: Any, index: int) -> list[Tensor]:
        with autocast(recipe.precision):
            loss = None if recipe.skips(index) else recipe.loss(net, batch)
        return [] if loss is None else [loss]

    epoch = 0
    while (recipe.epochs is None or epoch < recipe.epochs) and len(loop.rates) != recipe.steps:
        seen = len(loop.losses)
        for window in windows(recipe, epoch, shares):
            if len(loop.rates) == recipe.steps:
                break
            batches = [cast(batch) for batch in window]
            if recipe.manual:
                recipe.before_batch(net, len(loop.losses))
                loop.losses.append(recipe.manual_step(net, batches[0], optimizers, Tensor.backward).item())
                loop.end_step()
            else:
                loop.step(batches, losses_of, before=lambda index: recipe.before_batch(net, index))
        else:
            loop.end_epoch(loop.losses[seen:])
        epoch += 1
    net.eval()
    first = cast(recipe.collate([recipe.dataset()[index] for index in range(8)]))
    with torch.no_grad(), autocast(recipe.precision):
        outputs = recipe.predict(net, first)
    return Trained(
        weights=dict(net.state_dict()),
        steps=len(loop.rates),
        losses=loop.losses,
        outputs=outputs,
        rates=loop.rates,
    )


def prepared_net(recipe: Recipe) -> nn.Module:
    """Return a recipe's net in the dtype in which plain torch trains it."""
    net: nn.Module = _casting(recipe.precision)(recipe.net())
    return net.train()


def windows(recipe: Recipe, epoch: int, shares: int) -> Iterator[list[Any]]:
    """Yield the micro-batches of each optimizer step of an epoch."""
    data = recipe.dataset()
    sampler = ShardedSampler(recipe.samples, shuffle=True, seed=SEED)
    sampler.start(epoch)
    order = list(sampler)
    order += order[: -len(order) % shares]
    size = recipe.global_batch // recipe.accumulate
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    for start in range(0, len(batches), recipe.accumulate):
        window = batches[start : start + recipe.accumulate]
        yield [recipe.collate([data[index] for index in batch]) for batch in window]


def autocast(precision: str) -> AbstractContextManager[Any]:
    """Return the context of plain torch's forward in this precision."""
    dtypes = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    return torch.autocast("cpu", dtypes[precision]) if precision in dtypes else nullcontext()


def _casting(precision: str) -> Callable[[Any], Any]:
    dtypes = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}
    if precision not in dtypes:
        return lambda value: value
    dtype = dtypes[precision]

    def cast(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return value.to(dtype)
        return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, value)

    return cast
