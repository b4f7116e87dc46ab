"""Hands-on cells that are known to be neither equal nor refused, and why: to be worked off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class OpenCells:
    """Cells of strategies (patterns as of a shell) and rows."""

    strategies: Sequence[str]
    rows: Sequence[str]
    reason: str


SHARDS = ("fsdp", "ddp_fully_sharded", "model_parallel")
OPEN: tuple[OpenCells, ...] = (
    OpenCells(
        ("model_parallel",),
        ("functional_of_changed",),
        "torch's own error where a split layer is called with plain tensors: nothing of Stratagem's is called",
    ),
)


def why_open(row: str, strategy: str) -> str:
    """Return why a cell is known to be wrong; "" where it isn't known to be."""
    return next(
        (
            each.reason
            for each in OPEN
            if any(fnmatchcase(strategy, pattern) for pattern in each.strategies)
            and any(fnmatchcase(row, pattern) for pattern in each.rows)
        ),
        "",
    )
