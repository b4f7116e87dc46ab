"""`Reducer`: one logging point over all ranks: logged values, metric objects, and losses that aren't finite."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from stratagem.errors import LoggingError
from stratagem_trainer.metrics.metric_objects import computed
from stratagem_trainer.metrics.reduction import LogReduction, RankLog, ReducedLog

if TYPE_CHECKING:
    from stratagem import Collectives
    from stratagem_trainer.loops.loss_watch import LossWatch
    from stratagem_trainer.metrics.scope import Scope


class Reducer:
    """Reduces what ranks have logged.

    Args:
        collectives: collectives of the ranks that read different batches.
        module: has the metric objects that are logged.
        losses: checks this rank's losses.
    """

    def __init__(self, collectives: Collectives, module: nn.Module, losses: LossWatch) -> None:
        self._collectives, self._module, self._losses = collectives, module, losses
        self._reduction = LogReduction(collectives)

    def scope(self, scope: Scope, where: str) -> tuple[list[dict[str, float]], dict[str, float]]:
        """Reduce and clear a scope's values. Collective.

        Returns:
            The rows of an evaluation's single steps, and the values of the whole epoch or evaluation.
        """
        parts, rows = scope.take_sums(), scope.take_rows()
        objects, scope.objects = scope.objects, {}
        names = {scope.options(name).epoch_key(name): name for name in parts}
        own = {key: parts[name] for key, name in names.items() if not scope.options(name).sync_dist}
        synced = {key: parts[name] for key, name in names.items() if key not in own}
        values = {key: part.local() for key, part in own.items()}
        if self._collectives.world_size > 1:
            had_batches = scope.had_batches or scope.is_training
            log = RankLog(synced, values, had_batches, rows=len(rows), objects=len(objects))
            reduced = self.reduce(log, where)
            any_objects = reduced.objects > 0
            values = {**values, **reduced.values}
            steps = self._reduction.merge_rows(rows) if reduced.rows else []
        else:
            self.look_at_losses()
            values.update({key: part.local() for key, part in synced.items()})
            steps = [{key: part.local() for key, part in row.items()} for row in rows]
            any_objects = bool(objects)
        if any_objects:
            keyed = {name: (each, scope.options(name).epoch_key(name)) for name, each in objects.items()}
            for name, (key, value) in computed(keyed, self._module, self._collectives).items():
                names[key], values[key] = name, value
        values.update({names[key]: value for key, value in values.items() if key in names})
        return steps, values

    def reduce(self, log: RankLog, where: str) -> ReducedLog:
        """Reduce over ranks, and warn if a rank's loss isn't finite. Collective."""
        bad = self._losses.look()
        reduced = self._reduction.reduce(replace(log, nan_step=bad.step if bad else 0), where)
        first = min((step for step in reduced.nan_steps if step), default=0)
        if first and not self._losses.is_reported:
            self._losses.is_reported = True
            if self._collectives.node_rank == self._collectives.local_rank == 0:
                ranks = [str(rank) for rank, step in enumerate(reduced.nan_steps) if step == first]
                text = str(bad) if bad and bad.step == first else f"the loss isn't finite at step {first}"
                _warn(f"{text}, on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}")
        return reduced

    def look_at_losses(self) -> None:
        """Warn, once, if a loss isn't finite. Waits for the device."""
        bad = self._losses.look()
        if bad is not None and not self._losses.is_reported:
            self._losses.is_reported = True
            _warn(
                str(bad) + (f", on rank {self._collectives.rank}" if self._collectives.world_size > 1 else "")
            )


def _warn(text: str) -> None:
    warnings.warn(
        f"{text}: the run goes on with it; Trainer(terminate_on_nan=True) ends it there",
        UserWarning,
        stacklevel=3,
    )


def refuse_shared(values: Mapping[str, float], others: Mapping[str, float]) -> None:
    """Refuse a name that is logged with several loaders, or both with a loader and outside of any.

    Raises:
        LoggingError: names it.
    """
    both = values.keys() & others.keys()
    if both:
        raise LoggingError(
            f"{min(both)!r} is logged with several loaders, or with one and outside of any, with "
            "add_dataloader_idx=False: give each its own name"
        )
