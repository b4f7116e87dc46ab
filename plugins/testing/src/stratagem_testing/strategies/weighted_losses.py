"""Losses that are sums with a weight: the gradient of a step is that of Σ loss / Σ weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import Dataset, TensorDataset

from stratagem import LossSum
from stratagem.errors import UsageError
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.recipe import Recipe, windows
from stratagem_testing.same import expect_close
from stratagem_testing.strategies.parity import possible_precisions
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import naming, train
from stratagem_testing.workers import shared_workers

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class _Weighted(Recipe):
    """Samples with 0 to 4 labels each. A third of them has none, so that small micro-batches may have none."""

    steps: int | None = 6

    def dataset(self) -> Dataset[Any]:
        whole = super().dataset()
        assert isinstance(whole, TensorDataset)
        counts = torch.arange(self.samples) % 5
        return TensorDataset(*whole.tensors, torch.where(torch.arange(self.samples) % 3 > 0, counts, 0))

    def loss(self, net: nn.Module, batch: Any) -> Any:
        return LossSum(*self.summed(net, batch))

    def summed(self, net: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses of a batch's labels, and the number of labels."""
        x, y, counts = batch
        losses = F.cross_entropy(net(x), y, reduction="none")
        return (losses * counts).sum(), counts.sum()

    def manual_step(
        self, net: nn.Module, batch: Any, optimizers: Sequence[Any], backward: Callable[..., Any]
    ) -> Tensor:
        (optimizer,) = optimizers
        optimizer.zero_grad()
        first, second = self.summed(net, batch), self.summed(net, [each[:2] for each in batch])
        backward(first[0], weight=first[1])
        backward(second[0] * 0.5, weight=second[1])
        optimizer.step()
        return first[0]


class _AsDict(_Weighted):
    """Returns a dict instead of a `LossSum`."""

    def loss(self, net: nn.Module, batch: Any) -> Any:
        loss, weight = self.summed(net, batch)
        return {"loss": loss, "weight": weight}


@dataclass(frozen=True)
class _ByLBFGS(_Weighted):
    steps: int | None = 3
    closure: bool = True
    precision: str = "64-true"  # its steps magnify rounding errors of sums

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        # A line search uses losses and gradients: if only one of them is divided, its steps differ.
        return [torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3, line_search_fn="strong_wolfe")]


class _Products(nn.Linear):
    """A linear layer of products and sums, which autocast computes in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(-2) * self.weight).sum(-1) + self.bias


@dataclass(frozen=True)
class _Scaled(_Weighted):
    """Scales the loss in 16-mixed, but computes in float32 if parameters are in float32."""

    precision: str = "16-mixed"

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return nn.Sequential(_Products(6, 16), nn.Tanh(), _Products(16, 4), nn.Identity())


def _train(subject: StrategySubject, recipes: Sequence[_Weighted]) -> list[Weights | str]:
    trained: list[Weights | str] = []
    for recipe in recipes:
        try:
            trained.append(train(subject, recipe).weights)
        except UsageError as error:
            trained.append(str(error))
    return trained


def _exactly(recipe: _Weighted, shares: int, replaced: Callable[[Any], Any] | None) -> Weights:
    """Train in float64, in this process, with plain torch."""
    net = recipe.net().double()
    (optimizer,) = recipe.stepped_by(net, replaced)
    steps = epoch = 0
    while (recipe.epochs is None or epoch < recipe.epochs) and steps != recipe.steps:
        for window in windows(recipe, epoch, shares):
            if steps == recipe.steps:
                break
            batches = [(x.double(), y, counts) for x, y, counts in window]
            if recipe.manual:
                # Each rank has two samples.
                parts = [[each[rank::shares] for each in batches[0]] for rank in range(shares)]
                pairs = [recipe.summed(net, part) for part in parts]
                halves = [recipe.summed(net, [each[:2] for each in part]) for part in parts]
                terms = [*pairs, *((loss * 0.5, weight) for loss, weight in halves)]
                optimizer.zero_grad()
                _mean(terms).backward()  # type: ignore[no-untyped-call]  # torch has no types for it
                optimizer.step()
            else:
                optimizer.step(partial(_evaluate, recipe, net, optimizer, batches))
            steps += 1
        epoch += 1
    return dict(net.state_dict())


def _evaluate(recipe: _Weighted, net: nn.Module, optimizer: Optimizer, batches: Any) -> float:
    optimizer.zero_grad()
    loss = _mean([recipe.summed(net, batch) for batch in batches])
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    if recipe.max_norm is not None:
        nn.utils.clip_grad_norm_(net.parameters(), recipe.max_norm)
    return float(loss)


def _mean(terms: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    weight = sum(int(weight) for _, weight in terms)
    mean: Tensor = torch.stack([loss for loss, _ in terms]).sum() / max(weight, 1)
    return mean


@check(world_sizes=(1, 2))
def check_weighted_losses(subject: StrategySubject) -> None:
    """A step's gradient is that of Σ loss / Σ weight over all ranks and micro-batches; or weights are refused."""
    recipes = [
        _Weighted(),
        # Small micro-batches, some of them without a label; the last window has 2.
        _AsDict(global_batch=32, accumulate=4, samples=80, epochs=2, steps=None),
    ]
    if "norm_clipping" in subject.features:
        recipes.append(_Weighted(max_norm=0.05, accumulate=2))
    if "manual_backward" in subject.features:
        recipes.append(_Weighted(manual=True))
    precisions = possible_precisions(subject)
    # Line searches magnify rounding errors of gradients.
    if "closure" in subject.features and "64-true" in precisions and subject.tolerance() < 1e-5:
        recipes.append(_ByLBFGS())
    if "16-mixed" in precisions:
        recipes.append(_Scaled())
    by_rank = subject.run(_train, recipes)
    refusals = []
    for index, recipe in enumerate(recipes):
        ranks = [trained[index] for trained in by_rank]
        with naming(recipe):
            refused = [each for each in ranks if isinstance(each, str)]
            expect(len(refused) in (0, len(ranks)), f"only some ranks were refused: {refused[:1]}")
            if refused:
                refusals.append(refused[0])
                continue
            alone = shared_workers().run(1, _exactly, recipe, subject.shares(), subject.optimizer)[0]
            for rank, trained in enumerate(ranks):
                expect_close(
                    {name: value.double() for name, value in trained.items()},
                    alone,
                    subject.tolerance("16-mixed" if recipe.precision == "16-mixed" else "32-true") / 2,
                    f"rank {rank}",
                )
    if len(refusals) == len(recipes):
        raise NotApplicable(refusals[0])


# Your own training loop ---------------------------------------------------------------------------

STEPS, MICRO_BATCHES, SAMPLES = 4, 3, 4


def _batches(rank: int) -> list[list[tuple[Tensor, Tensor, Tensor]]]:
    """Return the micro-batches of each step on one rank. Rank 1 has no label in one step."""
    generator = torch.Generator().manual_seed(100 + rank)
    steps = []
    for step in range(STEPS):
        window = []
        for index in range(MICRO_BATCHES):
            counts = torch.randint(0, 5, (SAMPLES,), generator=generator)
            if (rank == 1 and step == 1) or index == step:
                counts.zero_()
            x = torch.randn(SAMPLES, 6, generator=generator)
            window.append((x, torch.randint(0, 4, (SAMPLES,), generator=generator), counts))
        steps.append(window)
    return steps


def _own_loop(runtime: Any, subject: StrategySubject, within: bool, clips: bool) -> Weights:
    """Train in a loop on `Runtime`. `within` runs all backwards but the last of a step in `no_sync`."""
    recipe = _Weighted()
    net = recipe.net()
    model, optimizer = runtime.setup(net, *recipe.stepped_by(net, subject.optimizer))
    for window in _batches(runtime.data_rank):
        optimizer.zero_grad()
        for index, batch in enumerate(window):
            is_last = index + 1 == len(window)
            with nullcontext() if is_last or not within else runtime.no_sync(model):
                loss, weight = recipe.summed(model, [each.to(runtime.device) for each in batch])
                runtime.backward(loss, model, weight=weight if within else int(weight))
        if clips:
            runtime.clip(optimizer, max_norm=0.05)
        optimizer.step()
    return {"the trained net's output": _outputs(model, runtime.device)}


def _outputs(net: Any, device: torch.device) -> Tensor:
    net.eval()
    with torch.no_grad():
        x = torch.linspace(-1, 1, 48, device=device).reshape(8, 6)
        outputs: Tensor = net(x.to(next(net.parameters()).dtype)).double().cpu()
    return outputs


def _in_runs(subject: StrategySubject, clips: bool) -> list[Weights | str]:
    came: list[Weights | str] = []
    for within in (True, False):
        try:
            came.append(subject.runtime().launch(_own_loop, subject, within, clips, quiet=True))
        except UsageError as error:
            came.append(str(error))
    return came


def _loop_exactly(shares: int, clips: bool, replaced: Callable[[Any], Any] | None) -> Weights:
    recipe = _Weighted()
    net = recipe.net().double()
    (optimizer,) = recipe.stepped_by(net, replaced)
    for windows_of_ranks in zip(*(_batches(rank) for rank in range(shares))):
        optimizer.zero_grad()
        batches = [(x.double(), y, counts) for window in windows_of_ranks for x, y, counts in window]
        _mean([recipe.summed(net, batch) for batch in batches]).backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        if clips:
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        optimizer.step()
    return {"the trained net's output": _outputs(net, torch.device("cpu"))}


@check(world_sizes=(1, 2))
def check_weighted_backwards(subject: StrategySubject) -> None:
    """In your own loop, gradients are those of Σ loss / Σ weight after each backward outside of `no_sync`."""
    clips = "norm_clipping" in subject.features
    by_rank = subject.run(_in_runs, clips)
    refused = [each for came in by_rank for each in came if isinstance(each, str)]
    if len(refused) == 2 * len(by_rank):
        raise NotApplicable(refused[0])
    alone = shared_workers().run(1, _loop_exactly, subject.shares(), clips, subject.optimizer)[0]
    for rank, came in enumerate(by_rank):
        for weights, where in zip(came, ("with no_sync", "without no_sync")):
            expect(not isinstance(weights, str), f"only rank {rank} was refused: {weights}")
            if isinstance(weights, str):
                continue
            expect_close(weights, alone, subject.tolerance() / 2, f"rank {rank}, {where}")
