"""One checkpoint written under a strategy, or read under another one, and held against plain PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe
from stratagem_testing.reference import Schedule
from stratagem_testing.trained import RecipeModule
from stratagem_testing.workers import RankError
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import stratagem
from stratagem import Checkpoint
from tests.portability.columns import Column

FIRST, THEN = 4, 5
"""Optimizer steps before the checkpoint, and after."""
LOSSES, STATES = 1e-5, 1e-4
"""How far a loss may be from plain PyTorch's; and a written tensor, of the largest number in it."""


class Scale(nn.Module):
    """A parameter of one number, and a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.full((width,), 0.25))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


@dataclass(frozen=True)
class Travelling(Recipe):
    """Shapes that no number of ranks divides, two parameter groups, moments, step counts and a schedule."""

    steps: int | None = FIRST + THEN

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return nn.Sequential(
                *(
                    nn.Linear(6, 13),
                    nn.Tanh(),
                    Scale(13),
                    nn.Linear(13, 7, bias=False),
                    nn.Tanh(),
                    nn.Linear(7, 4),
                )
            )

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        matrices = [p for p in net.parameters() if p.dim() > 1]
        others = [p for p in net.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 3e-3}]
        return [torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)]

    def schedules(self, optimizers: Sequence[Optimizer]) -> Sequence[Schedule]:
        return [(torch.optim.lr_scheduler.StepLR(optimizers[0], 3, 0.5), "step")]


@dataclass
class Plain:
    """What one process in plain PyTorch comes to."""

    losses: list[float]
    tensors: dict[str, Tensor]
    """After the first steps, by checkpoint key."""


@cache
def plainly() -> Plain:
    """Train by hand, in the order of the trainer's samples."""
    from stratagem_testing.subject import SEED

    recipe = Travelling()
    net, data = recipe.net(), recipe.dataset()
    (optimizer,) = recipe.optimizers(net)
    ((schedule, _),) = recipe.schedules([optimizer])
    order = list(stratagem.ShardedSampler(recipe.samples, seed=SEED))
    plain = Plain([], {})
    for step in range(FIRST + THEN):
        chosen = order[step * recipe.global_batch : (step + 1) * recipe.global_batch]
        x, y = recipe.collate([data[index] for index in chosen])
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        plain.losses.append(loss.item())
        if step == FIRST - 1:
            plain.tensors = {f"model/net.{key}": value.clone() for key, value in net.state_dict().items()}
            for name, parameter in net.named_parameters():
                for key, value in optimizer.state[parameter].items():
                    plain.tensors[f"optimizer/0/net.{name}/{key}"] = value.clone()
    return plain


@dataclass(frozen=True)
class Outcome:
    """What came of one checkpoint under one column."""

    writer: str
    reader: str
    apart: float | None
    """How far the furthest of the next losses is from plain PyTorch's."""
    wrong: str = ""
    """What isn't as it should be; nothing where all is."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write(column: Column, path: str) -> str:
    """Train the first steps under a column and save; return what is wrong with that, or nothing."""
    subject = column.subject()
    try:
        ranks = subject.run(_write, path)
    except RankError as error:
        return _sentence(error)
    apart = _apart(ranks, plainly().losses[:FIRST])
    if not apart <= LOSSES:
        return f"before the checkpoint, losses are {apart:.0e} from plain PyTorch's"
    return _unlike(contents(path), plainly().tensors, STATES)


def read(column: Column, paths: Mapping[str, str], again: str) -> Iterator[Outcome]:
    """Load each checkpoint under a column, write it again, and train on.

    Args:
        column: what reads.
        paths: name of the column that wrote it → checkpoint.
        again: where what was loaded is written to.
    """
    subject = column.subject()
    for came, (writer, path) in zip(_reads(subject, list(paths.values()), again), paths.items()):
        if isinstance(came, str):
            yield Outcome(writer, column.name, None, came)
            continue
        apart = _apart(came, plainly().losses[FIRST:])
        wrong = "" if apart <= LOSSES else f"losses are {apart:.0e} from plain PyTorch's"
        rewritten = f"{again}/{path.rpartition('/')[2]}"
        # What was loaded is what was written, to the last bit.
        wrong = wrong or _unlike(contents(rewritten), contents(path), 0.0)
        shutil.rmtree(rewritten)
        yield Outcome(writer, column.name, apart, wrong)


def contents(path: str) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint, read in this process."""
    from stratagem_checkpoint import DirectoryCheckpointer

    from stratagem.collectives.local import LocalCollectives

    reader = DirectoryCheckpointer(LocalCollectives(torch.device("cpu"))).open(path)
    whole = {key: torch.empty(info.shape, dtype=info.dtype) for key, info in reader.tensors.items()}
    reader.read(whole)
    return whole


def _reads(subject: StrategySubject, paths: list[str], again: str) -> Iterator[list[list[float]] | str]:
    """Yield of each checkpoint the losses of each rank, or the error that ended it."""
    while paths:
        try:
            ranks = subject.run(_read_all, paths, again)
            yield from ([of_rank[index] for of_rank in ranks] for index in range(len(paths)))
            return
        except RankError:
            pass
        # One of them ended all: one at a time.
        first, paths = paths[0], paths[1:]
        try:
            yield [losses[0] for losses in subject.run(_read_all, [first], again)]
        except RankError as error:
            yield _sentence(error)


# In a worker --------------------------------------------------------------------------------------


class Losses(stratagem.Callback):
    """Keeps the losses, and writes again what was loaded before it trains on."""

    def __init__(self, again: str = "") -> None:
        self.again = again
        self.losses: list[Any] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        if self.again:
            tensors = {**trainer.prepared.model_tensors(), **trainer.prepared.optimizer_tensors()}
            trainer.runtime.session.checkpointer.save(self.again, Checkpoint(tensors))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(outputs["loss"] if isinstance(outputs, Mapping) else outputs)


def _write(subject: StrategySubject, path: str) -> list[float]:
    losses = Losses()
    trainer = subject.trainer(max_steps=FIRST, callbacks=[losses, _Save(path)])
    trainer.fit(_module(subject))
    return [float(loss) for loss in losses.losses]


class _Save(stratagem.Callback):
    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_end(self, trainer: Any, module: Any) -> None:
        trainer.save_checkpoint(self.path)


def _read_all(subject: StrategySubject, paths: Sequence[str], again: str) -> list[list[float]]:
    came = []
    for path in paths:
        losses = Losses(f"{again}/{path.rpartition('/')[2]}")
        trainer = subject.trainer(max_steps=FIRST + THEN, callbacks=[losses])
        trainer.fit(_module(subject), ckpt_path=path)
        came.append([float(loss) for loss in losses.losses])
    return came


def _module(subject: StrategySubject) -> RecipeModule:
    recipe = Travelling()
    return RecipeModule(recipe, recipe.global_batch // subject.shares())


# Comparing ----------------------------------------------------------------------------------------


def _apart(ranks: Sequence[Sequence[float]], expected: Sequence[float]) -> float:
    if {len(losses) for losses in ranks} != {len(expected)}:
        return float("inf")
    means = [sum(of_step) / len(of_step) for of_step in zip(*ranks)]
    return max(abs(mean - value) for mean, value in zip(means, expected))


def _unlike(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> str:
    """Return how the first tensor differs by more than `tolerance` of the largest number in it; or nothing."""
    other = sorted(found.keys() ^ expected.keys())
    if other:
        return f"{other[0]} is only in {'what was loaded' if other[0] in found else 'what was written'}"
    for key, value in expected.items():
        apart = float((found[key].double() - value.double()).abs().max())
        if not apart <= tolerance * float(value.double().abs().max()):
            return f"{key} is off by {apart:.0e}"
    return ""


def _sentence(error: RankError) -> str:
    lines = [line for line in str(error.error or error).splitlines() if line.strip()]
    return " ".join((lines[0] if error.error is not None else lines[-1]).split())
