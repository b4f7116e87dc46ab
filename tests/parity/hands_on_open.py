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


SHARDS = ("fsdp", "ddp_fully_sharded")
OPEN: tuple[OpenCells, ...] = (
    OpenCells(
        SHARDS,
        ("private_gradients", "functional_maml", "weights_reinitialized"),
        "errors of torch, and a crash of functional_call, instead of a sentence",
    ),
    OpenCells(SHARDS, ("closure_lbfgs",), "LBFGS steps on shards: to be refused"),
    OpenCells(("model_parallel",), ("*",), "tried last while its tensors were being made whole for users"),
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
