"""Find, with `stratagem diff`, where a strategy's training of a recipe first differs from that of one process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratagem_diff import Comparison, RecordOptions, compare, record, sentence
from stratagem_diff.causes import likely_causes
from stratagem_diff.recorder import Recorder
from stratagem_trainer.callbacks.base import Callback

from stratagem.errors import StratagemError
from stratagem_testing.checks import ConformanceError
from stratagem_testing.recipe import Recipe, prepared_net, train_plainly
from stratagem_testing.workers import RankError, shared_workers

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer
    from torch.optim import Optimizer

    from stratagem_testing.subject import StrategySubject

STEPS = 20
"""Number of optimizer steps to record."""


class Recording(Callback):
    """Records a run's training on this rank for `stratagem diff`.

    Args:
        folder: folder of the record, the same on all ranks.
        submodule: path of the submodule to record; by default the whole module.
        options: fields of `stratagem_diff.RecordOptions`.
    """

    order = 200  # after callbacks that load weights

    def __init__(self, folder: str, submodule: str = "", **options: Any) -> None:
        self._folder, self._submodule, self._options = folder, submodule, RecordOptions(**options)
        self._recorder: Recorder | None = None

    def on_train_start(self, trainer: Trainer, module: Module) -> None:
        collectives = trainer.runtime.session.collectives
        self._recorder = Recorder(
            self._folder, self._options, rank=collectives.rank, world_size=collectives.world_size
        )
        self._recorder.watch(module.get_submodule(self._submodule))

    def on_train_end(self, trainer: Trainer, module: Module) -> None:
        assert self._recorder is not None
        self._recorder.close()


def with_cause(found: Comparison) -> str:
    """Return the sentence of `stratagem diff`, and the most likely cause."""
    causes = [f"Likely: {cause.rstrip('.')}." for cause in likely_causes(found)[:1]]
    return " ".join([sentence(found), *causes])


@contextmanager
def naming_first_difference(
    subject: StrategySubject, recipe: Recipe, plain: Recipe, train: Callable[..., Any]
) -> Iterator[None]:
    """Append the first difference between two trainings to a failure's message. A context manager.

    Args:
        subject: the strategy.
        recipe: the recipe that the strategy trained.
        plain: the recipe that plain torch trained.
        train: `train(subject, recipe, callbacks)` trains under the strategy; run by every rank.
    """
    try:
        yield
    except ConformanceError as error:
        found = first_difference(subject, recipe, plain, train)
        raise ConformanceError(
            f"{error}. The first difference between plain torch (A) and the strategy (B): {found}"
        ) from None


def first_difference(
    subject: StrategySubject, recipe: Recipe, plain: Recipe, train: Callable[..., Any]
) -> str:
    """Train again under the strategy and in plain torch, and return the first difference.

    Args:
        subject: the strategy.
        recipe: the recipe that the strategy trains.
        plain: the recipe that plain torch trains.
        train: `train(subject, recipe, callbacks)` trains under the strategy; run by every rank.

    Returns:
        The sentence of `stratagem diff`, and the likely cause; or why no difference can be named.
    """
    with tempfile.TemporaryDirectory(prefix="stratagem-records-") as folder:
        theirs, rounding, ours = (str(Path(folder, name)) for name in ("plain", "rounding", "strategy"))
        try:
            subject.run(train, recipe, [Recording(ours, "net", steps=STEPS)])
            for path in (theirs, rounding):
                shared_workers().run(
                    1, _record_plainly, plain, subject.shares(), subject.optimizer, path, path == rounding
                )
            return with_cause(compare(theirs, ours, [rounding]))
        except (RankError, StratagemError) as error:
            return f"stratagem diff can't find it: {str(error).strip().splitlines()[-1]}"


def _record_plainly(
    recipe: Recipe,
    shares: int,
    replaced: Callable[[Optimizer], Optimizer] | None,
    folder: str,
    rounding: bool,
) -> None:
    net = prepared_net(recipe)
    with record(net, None, folder, steps=STEPS, rounding=rounding):
        train_plainly(recipe, shares, net, replaced)
