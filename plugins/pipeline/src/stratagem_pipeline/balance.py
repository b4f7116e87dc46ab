"""Distributes layers over stages: neighbouring layers together, with the costliest stage as cheap as possible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from stratagem import ConfigError

MEASURES = ("parameters", "activations", "time")
"""Costs that an automatic balance can distribute."""


def partition(costs: Sequence[float], stages: int) -> list[int]:
    """Return how many layers each stage gets, so that the costliest stage costs as little as possible.

    Args:
        costs: of each layer, none negative.
        stages: every one gets at least one layer.

    Returns:
        One of the best partitions, by dynamic programming over (layers, stages).

    Raises:
        ConfigError: there are more stages than layers.
    """
    count = len(costs)
    refuse_more_stages(count, stages)
    until = [0.0, *accumulate(float(cost) for cost in costs)]
    # least[n]: the smallest possible bottleneck of the first n layers, in the number of stages so far.
    least = list(until)
    cuts: list[list[int]] = []
    for stage in range(2, stages + 1):
        best = [float("inf")] * (count + 1)
        cut = [0] * (count + 1)
        for end in range(stage, count + 1):
            for start in range(stage - 1, end):
                bottleneck = max(least[start], until[end] - until[start])
                # Of equally good cuts, take the later one, which leaves less to the last stage.
                if bottleneck <= best[end]:
                    best[end], cut[end] = bottleneck, start
        least = best
        cuts.append(cut)
    sizes, end = [], count
    for cut in reversed(cuts):
        sizes.append(end - cut[end])
        end = cut[end]
    return [end, *reversed(sizes)]


def by_hand(balance: Sequence[int], layers: int, stages: int) -> list[int]:
    """Check a user's `balance` and return it.

    Raises:
        ConfigError: it has another number of stages, or doesn't add up to the number of layers.
    """
    sizes = list(balance)
    refuse_other_stages(sizes, stages)
    if any(size < 1 for size in sizes):
        raise ConfigError(f"balance={sizes} has a stage without layers: give each at least one")
    if sum(sizes) != layers:
        raise ConfigError(
            f"balance={sizes} adds up to {sum(sizes)}, and the pipelined module has {layers} layers: "
            "give each of them to one stage"
        )
    return sizes


def refuse_other_stages(sizes: Sequence[int], stages: int) -> None:
    """Refuse a user's balance with another number of stages.

    Raises:
        ConfigError: says what to give.
    """
    if len(sizes) != stages:
        raise ConfigError(
            f"balance={sizes} has {len(sizes)} entries, and this pipeline {stages} stages: give the number of layers "
            "of each stage"
        )


def refuse_more_stages(layers: int, stages: int) -> None:
    """Refuse fewer layers than stages.

    Raises:
        ConfigError: says what to change.
    """
    if stages > layers:
        raise ConfigError(
            f"the pipelined module has {layers} layers, too few for {stages} stages: use fewer devices, a "
            "data_parallel_size that divides them, or a module of more layers"
        )


def read_balance(balance: object) -> str | list[int]:
    """Return `balance` as the name of a measure or as numbers of layers.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(balance, str) and balance in MEASURES:
        return balance
    if (
        isinstance(balance, Sequence)
        and not isinstance(balance, str)
        and all(isinstance(size, int) and not isinstance(size, bool) for size in balance)
    ):
        return list(balance)
    raise ConfigError(
        f"balance={balance!r} is neither the number of layers of each stage, as [2, 3], nor one of "
        f"{', '.join(MEASURES)}"
    )
