"""Parts of a step: the gradient norm, the loss scale, error feedback of rounding errors, and `no_sync`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.callbacks.base import Callback
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import Dataset, TensorDataset

from stratagem import Clipping
from stratagem.errors import UsageError
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.same import expect_close, expect_identical
from stratagem_testing.strategies.consistency import SaveAfter
from stratagem_testing.strategies.parity import possible_precisions
from stratagem_testing.subject import StrategySubject
from stratagem_testing.torch_private import collective_calls
from stratagem_testing.trained import plainly_for, train

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer

    from stratagem import Runtime


# The norm -----------------------------------------------------------------------------------------------


class _Tied(nn.Module):
    """Has one matrix under two names, and a 0-dim parameter."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.first, self.last, self.head = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 4)
        self.last.weight = self.first.weight
        self.factor = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.last(torch.tanh(self.first(x)) * self.factor)))
        return scores


_SMALL = 1 / 256
"""Factor on the loss, so that no gradient overflows at the initial scale of 16-mixed."""


@check(needs=["norm_clipping"], world_sizes=(1, 2))
def check_returned_norm(subject: StrategySubject) -> None:
    """In your own loop, `clip` returns the norm of the whole unscaled gradient, with each parameter counted once."""
    for precision in ("32-true", *(possible_precisions(subject) & {"16-mixed"})):
        by_rank = subject.run(_clip_or_refusal, precision)
        refused = [found for found in by_rank if isinstance(found, str)]
        expect(len(refused) in (0, len(by_rank)), f"it is refused only on some ranks: {refused}")
        if refused and precision == "32-true":
            raise NotApplicable(refused[0])
        near = max(1e-3 if precision == "32-true" else 2e-2, subject.tolerance(precision))
        for rank, found in enumerate(by_rank):
            for step, (ours, theirs) in enumerate(found if not isinstance(found, str) else ()):
                expect(
                    abs(ours - theirs) <= near * theirs,
                    f"rank {rank}: clip returns {ours:.6g} in step {step}, not {theirs:.6g} as in one process "
                    f"(tried with precision={precision!r})",
                )


def _clip_or_refusal(subject: StrategySubject, precision: str) -> list[tuple[float, float]] | str:
    shapes: tuple[tuple[int, ...], ...] = ((), (1,))  # the strategy may refuse only the 0-dim parameter
    for shape in shapes:
        try:
            runtime = subject.runtime(precision=precision)
            found: list[tuple[float, float]] = runtime.launch(_clip, subject, shape, quiet=True)
        except UsageError as error:
            refusal = str(error)
        else:
            return found
    return refusal


def _clip(runtime: Runtime, subject: StrategySubject, shape: tuple[int, ...]) -> list[tuple[float, float]]:
    """Return the norm in each of three steps, and that of plain PyTorch. Run by every rank."""
    plain: Any = _Tied(shape)
    alone = torch.optim.SGD(plain.parameters(), lr=0.1)
    module: Any = _Tied(shape)
    replaced = subject.optimizer or (lambda optimizer: optimizer)
    optimizer = replaced(torch.optim.SGD(module.parameters(), lr=0.1))
    clipping = Clipping(max_norm=0.05 * _SMALL)  # an engine that clips must know the norm before it starts
    module, optimizer = runtime.setup(module, optimizer, clipping=clipping)
    generator = torch.Generator().manual_seed(11)
    x, y = torch.randn(16, 6, generator=generator), torch.arange(16) % 4
    own = slice(runtime.data_rank, None, subject.shares())
    norms = []
    for _ in range(3):
        optimizer.zero_grad()
        scores = module(x[own].to(runtime.device)).float()  # in 16 bits, the scale alone would overflow
        loss = F.cross_entropy(scores, y[own].to(runtime.device))
        runtime.backward(loss * _SMALL)
        norm = runtime.clip(optimizer, max_norm=0.05 * _SMALL)
        expect(norm is not None, "clip with max_norm returns no norm")
        assert norm is not None
        optimizer.step()
        alone.zero_grad()
        torch.autograd.backward(F.cross_entropy(plain(x), y) * _SMALL)
        norms.append((float(norm), float(nn.utils.clip_grad_norm_(plain.parameters(), 0.05 * _SMALL))))
        if subject.optimizer is not None:
            break  # the replaced optimizer steps differently, so that the next norm differs
        alone.step()
    return norms


# The scale of a loss ------------------------------------------------------------------------------------

_OVERFLOWS = 1
"""The micro-batch whose gradients overflow, on one rank."""


@dataclass(frozen=True)
class _Overflowing(Recipe):
    precision: str = "16-mixed"
    max_norm: float | None = 0.05
    steps: int | None = None
    epochs: int | None = 1
    samples: int = 96

    def before_batch(self, net: nn.Module, index: int) -> None:
        net.index = index  # type: ignore[assignment]  # torch types attributes as tensors and modules

    def loss(self, net: nn.Module, batch: Any) -> Tensor | None:
        loss = super().loss(net, batch)
        is_last = int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1
        assert loss is not None
        return loss * 1e30 if is_last and net.index == _OVERFLOWS else loss


@check(needs=["norm_clipping"], world_sizes=(1, 2))
def check_scaled_steps(subject: StrategySubject) -> None:
    """In 16-mixed, a step that overflows on one rank is skipped on all, and not counted; also if resumed."""
    if "16-mixed" not in possible_precisions(subject):
        raise NotApplicable("it has no precision 16-mixed here")
    recipe = _Overflowing()
    by_rank = subject.run(_train_scaled, recipe)
    refused = [each for each in by_rank if isinstance(each, str)]
    if refused:
        expect(len(refused) == len(by_rank), f"it is refused only on some ranks: {refused[0]}")
        raise NotApplicable(refused[0])
    plain = plainly_for(subject, recipe)
    for rank, results in enumerate(by_rank):
        assert not isinstance(results, str)
        (whole, scale), *continued = results
        expect(
            whole.steps == plain.steps - 1,
            f"rank {rank} reports {whole.steps} optimizer steps, but one process made {plain.steps - 1}, without "
            "the one that overflowed",
        )
        expect_close(whole.weights, plain.weights, subject.tolerance("16-mixed"), f"rank {rank}")
        for after, (resumed, its_scale) in zip((1, 3), continued):
            who = f"rank {rank}, continued after micro-batch {after}"
            expect_identical(resumed, whole, who, "the run that was never interrupted")
            expect(its_scale == scale, f"{who}, ends with the scaler's state {its_scale}, not {scale}")


@dataclass
class _Scale(Callback):
    """Keeps the precision's state in a checkpoint of the last step."""

    found: Any = None

    def on_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        self.found = trainer.prepared.state()["precision"]


def _train_scaled(subject: StrategySubject, recipe: Recipe) -> list[tuple[Trained, Any]] | str:
    """Train, and resume from two micro-batches; return the reason if it is refused. Run by every rank."""
    scales = [_Scale() for _ in range(3)]
    try:
        whole = train(subject, recipe, [SaveAfter((1, 3), subject.folder), scales[0]])
    except UsageError as error:
        return str(error)
    continued = [
        train(subject, _From(first=after), [scale], ckpt_path=f"{subject.folder}/after-{after}")
        for after, scale in zip((1, 3), scales[1:])
    ]
    return [(trained, scale.found) for trained, scale in zip([whole, *continued], scales)]


@dataclass(frozen=True)
class _From(_Overflowing):
    """The same from a micro-batch on. Indices are counted from there."""

    first: int = 0

    def before_batch(self, net: nn.Module, index: int) -> None:
        super().before_batch(net, index + self.first)


# Error feedback -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Given(Recipe):
    """Has given gradients, not computed from samples: random ones, and zeros in the last steps."""

    steps: int | None = 48
    samples: int = 48 * 4
    global_batch: int = 4

    def net(self) -> nn.Module:
        net = nn.Sequential(nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3), nn.Identity())
        for parameter in net.parameters():
            nn.init.zeros_(parameter)
        return net

    def dataset(self) -> Dataset[Any]:
        return TensorDataset(torch.arange(self.samples, dtype=torch.float32))

    def loss(self, net: nn.Module, batch: Any) -> Tensor:
        # The gradients of a step depend on the rank, but not on its samples, so that their order doesn't matter.
        count = int(getattr(net, "seen", 0))
        net.seen = count + 1  # type: ignore[assignment]  # torch types attributes as tensors and modules
        rank = int(os.environ.get("RANK", 0))
        terms = [(p * given_gradient(count, rank, i, p)).sum() for i, p in enumerate(net.parameters())]
        return torch.stack(terms).sum()

    def predict(self, net: nn.Module, batch: Any) -> Tensor:
        return torch.zeros(1)

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.SGD(net.parameters(), lr=1.0)]


_FLUSHED = 8
"""Number of last steps with zero gradients, in which error feedback applies the remaining rounding errors."""


def given_gradient(step: int, rank: int, index: int, like: Tensor) -> Tensor:
    """Return the gradient of a parameter in a step. The gradients of all steps add up to a single random tensor."""
    assert _Given.steps is not None

    def drawn(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * step + 100 * rank + index)
        return torch.randn(like.shape, generator=generator)

    if step >= _Given.steps - _FLUSHED:
        return torch.zeros_like(like)
    now = drawn(step)
    return now.to(like.device) if step == 0 else (now - drawn(step - 1)).to(like.device)


@check(world_sizes=(1, 2))
def check_error_feedback(subject: StrategySubject) -> None:
    """With error feedback, a parameter's rounding errors are fully added to its later gradients."""
    if not subject.feeds_errors_back:
        raise NotApplicable("its subject doesn't have feeds_errors_back=True: it has no error feedback")
    recipe = _Given()
    assert recipe.steps is not None
    last = recipe.steps - _FLUSHED - 1
    for rank, trained in enumerate(subject.run(train, recipe)):
        for index, (name, parameter) in enumerate(recipe.net().named_parameters()):
            drawn = [
                sum(given_gradient(step, other, index, parameter) for step in range(last + 1))
                for other in range(subject.processes())
            ]
            wanted = -torch.stack([torch.as_tensor(each) for each in drawn]).mean(0)
            apart = float((trained.weights[name] - wanted).abs().max())
            expect(
                apart <= 4e-6,
                f"rank {rank}: {name} differs by {apart:.2g} from the sum of its gradients, {_FLUSHED} steps after "
                "the last of them: the rounding errors weren't applied",
            )


# no_sync --------------------------------------------------------------------------------------------------


@check(world_sizes=(2,))
def check_no_sync(subject: StrategySubject) -> None:
    """A micro-batch in `no_sync` makes fewer collective calls than one outside, or neither makes any."""
    if subject.shares() < 2:
        raise NotApplicable("its ranks read the same batches, or are one process")
    for rank, found in enumerate(subject.run(_traffic_or_refusal)):
        if isinstance(found, str):
            raise NotApplicable(found)
        within, outside = found
        expect(
            within < outside or within == outside == 0,
            f"rank {rank} makes {within} collective calls in no_sync, and {outside} outside, per micro-batch",
        )


def _traffic_or_refusal(subject: StrategySubject) -> tuple[int, int] | str:
    try:
        found: tuple[int, int] = subject.runtime().launch(_traffic, subject, quiet=True)
    except UsageError as error:
        return str(error)
    return found


def _traffic(runtime: Runtime, subject: StrategySubject) -> tuple[int, int]:
    """Return how many collective calls a micro-batch makes in `no_sync`, and outside. Run by every rank."""
    module: Any = Recipe().net()
    replaced = subject.optimizer or (lambda optimizer: optimizer)
    module, optimizer = runtime.setup(module, replaced(torch.optim.SGD(module.parameters(), lr=0.1)))
    x = torch.ones(4, 6, device=runtime.device) * (1 + runtime.rank)
    counts = []
    for _ in range(4):  # in its first steps, DistributedDataParallel sets up what later steps use
        before = collective_calls()
        with runtime.no_sync():
            runtime.backward(module(x).square().mean())
        between = collective_calls()
        runtime.backward(module(x).square().mean())
        counts.append((between - before, collective_calls() - between))
        optimizer.step()
        optimizer.zero_grad()
    return counts[-1]
