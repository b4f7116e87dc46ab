"""Saving a run, and resuming it on other ranks, in mid-epoch, or with a changed module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from stratagem_checkpoint import InitialWeights
from stratagem_trainer.callbacks.base import Callback
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, TensorDataset

from stratagem_testing.checks import check, expect
from stratagem_testing.recipe import Recipe, Trained, train_plainly
from stratagem_testing.same import expect_same
from stratagem_testing.strategies.data import Seen
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import naming, plainly_for, train
from stratagem_testing.workers import shared_workers

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer


@dataclass
class _SaveAt(Callback):
    step: int
    path: str

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@dataclass(frozen=True)
class _Plain(Recipe):
    """Has the same results at any world size, because it has no random numbers."""

    steps: int | None = 10

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.Adam(net.parameters(), lr=1e-2)]


@check(needs=["resharding"], world_sizes=(2,))
def check_other_world_size(subject: StrategySubject) -> None:
    """A checkpoint from 2 devices is resumed on 1 and on 4, with the losses of a run that was never interrupted."""
    path = f"{subject.folder}/checkpoint"
    subject.run(_save, path)
    for size in subject.world_sizes():
        there = subject.at(size)
        ranks = there.run(_continue, path)
        plain = plainly_for(there, _Plain())
        for trained in ranks:
            trained.losses[:0] = plain.losses[:4]
            trained.rates[:0] = plain.rates[:4]
        with naming(f"saved on 2, loaded on {size}"):
            expect_same(ranks, plain, 20 * subject.tolerance())


def _save(subject: StrategySubject, path: str) -> None:
    # Save in the background, so that a step changes parameters while they are written.
    train(subject, _Plain(steps=5), [_SaveAt(4, path)], checkpoint_options={"async": True})


def _continue(subject: StrategySubject, path: str) -> Trained:
    return train(subject, _Plain(), ckpt_path=path)


@dataclass(frozen=True)
class _Numbered(Recipe):
    samples: int = 80
    epochs: int | None = 1
    steps: int | None = None

    def dataset(self) -> Dataset[Any]:
        x, y = super().dataset()[:]
        return TensorDataset(x, y, torch.arange(self.samples))


@check
def check_mid_epoch(subject: StrategySubject) -> None:
    """A run that is resumed in the middle of an epoch continues with the next sample, and repeats none."""
    before, after = zip(*subject.run(_in_two_parts))
    copies = subject.processes() // subject.shares()
    for seen, count, when in ((before, 32, "before"), (after, 48, "after")):
        number = sum(map(len, seen))
        expect(
            number == count * copies,
            f"{when} the interruption, {number} samples were read, not {count * copies}",
        )
    numbers = sorted(number for seen in (*before, *after) for number in seen)
    expect(
        numbers == sorted(list(range(_Numbered.samples)) * copies),
        f"before and after the interruption, {_Numbered.samples - len(set(numbers))} samples are missing",
    )


def _in_two_parts(subject: StrategySubject) -> tuple[list[int], list[int]]:
    path = f"{subject.folder}/checkpoint"
    first, second = Seen(), Seen()
    train(subject, _Numbered(), [first, _SaveAt(2, path)], max_steps=2)
    train(subject, _Numbered(), [second], ckpt_path=path)
    return first.epochs[0], second.epochs[0]


class _OtherHead(nn.Sequential):
    """The layers of the net, with another head."""

    def __init__(self, net: nn.Module) -> None:
        first, activation, *_ = net.children()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            super().__init__(first, activation, nn.Linear(16, 8), nn.Identity())


@dataclass(frozen=True)
class _Changed(Recipe):
    steps: int | None = 5

    def net(self) -> nn.Module:
        return _OtherHead(super().net())


@check(needs=["resharding"], world_sizes=(2,))
def check_initial_weights(subject: StrategySubject) -> None:
    """A changed module loads the tensors that it shares with a checkpoint, and trains as in one process."""
    ranks = subject.run(_with_initial_weights)
    recipe = _Changed()
    net = recipe.net()
    shared = {name: value for name, value in ranks[0][0].items() if name.startswith("0.")}
    net.load_state_dict(shared, strict=False)
    alone = shared_workers().run(1, train_plainly, recipe, subject.shares(), net, subject.optimizer)
    plain = alone[0]
    expect_same([trained for _, trained in ranks], plain, 10 * subject.tolerance())


def _with_initial_weights(subject: StrategySubject) -> tuple[dict[str, Tensor], Trained]:
    path = f"{subject.folder}/checkpoint"
    before = train(subject, _Plain(steps=2), [_SaveAt(2, path)])
    weights = InitialWeights(path, strict=False, skip=["net.2."])
    return before.weights, train(subject, _Changed(), initial_weights=weights)
