"""The values that an evaluation has logged so far, for hooks at the end of its epoch that read them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from stratagem_trainer.metrics.latest import by_key
from stratagem_trainer.metrics.metric_objects import states_kept
from stratagem_trainer.metrics.reducer import Reducer

if TYPE_CHECKING:
    from stratagem_trainer.metrics.scope import Scope
    from stratagem_trainer.stage.state import StageState


def show_so_far(state: StageState, scope: Scope, of_loaders: Sequence[Scope]) -> None:
    """Make what the evaluation has logged so far the latest values. Collective.

    It works on copies: the end of the evaluation reduces these values again, with those that hooks log meanwhile.
    Metric objects are restored.
    """
    reducer = Reducer(state.runtime.collectives.data, state.module, state.metrics.losses)
    with states_kept(state.module):
        for each in (scope, *of_loaders):
            # Don't copy the metric objects: they are submodules of the module.
            copied = deepcopy(each, {id(metric): metric for metric in each.objects.values()})
            values = by_key(*reducer.scope(copied, "the end of the evaluation"))
            state.metrics.load_state_dict({"latest": values}, with_epoch=False)
