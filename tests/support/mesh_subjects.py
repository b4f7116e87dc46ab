"""Compositions of axes, as subjects of the kit."""

from __future__ import annotations

from functools import partial
from typing import Any

from stratagem_model_parallel.conformance import whatever_can_be
from stratagem_testing import StrategySubject


def composition(
    expression: str, data_ranks: int, parallelize: Any = whatever_can_be, **axis_options: Any
) -> StrategySubject:
    """Return the subject of a composition whose ranks read so many parts of the data.

    Args:
        expression: as "shard=2+tensor=2".
        data_ranks: ranks that read different batches.
        parallelize: the plan of the axis tensor, where there is one.
        axis_options: further options by axis.
    """
    if "tensor" in expression:
        axis_options["tensor"] = {"parallelize": parallelize, **axis_options.get("tensor", {})}
    return StrategySubject(
        "composition",
        options={"timeout_s": 60, "axes": expression, "axis_options": axis_options},
        data_ranks=partial(fixed, data_ranks),
    )


def fixed(data_ranks: int, world_size: int) -> int:
    """Return a number whatever the world size: a function that workers find."""
    return data_ranks
