"""A strategy object is only configuration: a run's state is in the objects that its hooks return."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stratagem_trainer.callbacks.base import Callback

from stratagem_testing.checks import check, expect
from stratagem_testing.recipe import Recipe
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import train

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer

    from stratagem import Strategy

_ABSENT = object()


@check(world_sizes=(1, 2))
def check_configuration(subject: StrategySubject) -> None:
    """A run doesn't change the strategy object, and the object can be pickled and used for a second run."""
    for rank, (changes, losses) in enumerate(subject.run(_train_twice)):
        for change in changes:
            expect(False, f"rank {rank}: {change}")
        first, second = losses
        apart = max((abs(a - b) for a, b in zip(first, second)), default=0.0)
        expect(
            len(first) == len(second) and apart <= subject.tolerance(),
            f"rank {rank}: a second run of one strategy object has other losses than the first, by {apart:.2g}",
        )


def _train_twice(subject: StrategySubject) -> tuple[list[str], list[list[float]]]:
    """Return what changed in the strategy, and the losses of each run. Run by every rank."""
    strategy = subject.make()
    before = dict(vars(strategy))
    watch = _Watch(strategy, before)
    changes = _pickled(strategy, before)
    losses = []
    for _ in range(2):
        losses.append(train(subject, Recipe(steps=2), [watch], strategy=strategy).losses)
        changes += watch.changes or _changes(before, vars(strategy), "after a run")
    return changes[:1], losses


class _Watch(Callback):
    def __init__(self, strategy: Strategy, before: Mapping[str, Any]) -> None:
        self.strategy, self.before = strategy, before
        self.changes: list[str] = []

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.changes = self.changes or _changes(self.before, vars(self.strategy), "during a run")


def _pickled(strategy: Strategy, before: Mapping[str, Any]) -> list[str]:
    try:
        again = pickle.loads(pickle.dumps(strategy))
    except Exception as error:
        return [f"it can't be pickled: {type(error).__name__}: {error}"]
    return _changes(before, vars(again), "in its pickle")


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], when: str) -> list[str]:
    return [
        f"the strategy has another value of {name!r} {when}: keep a run's state in the collectives or the "
        "prepared module that its hooks return, and leave the object as its constructor made it"
        # The core's own attribute `_sessions` has state while a run exists.
        for name in sorted({*before, *now} - {"_sessions"})
        if not _is_same(before.get(name, _ABSENT), now.get(name, _ABSENT))
    ]


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if _ABSENT in (one, other) or type(one) is not type(other):
        return False
    try:
        return pickle.dumps(one) == pickle.dumps(other) or bool(one == other)
    except Exception:  # values that can't be compared aren't what the constructor got
        return False
