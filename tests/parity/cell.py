"""Trying one cell of the table: train, compare, and name what came of it."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from stratagem_testing.comparison import furthest, rms_difference
from stratagem_testing.record import TrainingRecord
from stratagem_testing.workers import RankError, Workers, shared_workers
from torch import Tensor

from stratagem.errors import CollectiveError, StratagemError, WorkerError
from tests.parity.columns import COLUMNS, Column
from tests.parity.kind import Kind
from tests.parity.kinds import KINDS
from tests.parity.plain import train_plainly
from tests.parity.trained import Refused, first_refusal, train_in_rank

HANGS_AFTER_S = 75.0
"""After which a cell is ended: longer than the group's own time limit."""
FLOOR = 0.02
"""A tensor that moved less than this part of the whole update is held against that: its own update may
be rounding alone, as that of the bias of keys in attention is."""
VERDICTS = ("equal", "refused", "wrong", "crashed", "hung")


@dataclass(frozen=True)
class Outcome:
    """What came of one kind under one strategy."""

    kind: str
    column: str
    verdict: str
    difference: float | None = None
    """Of weights, relative to the update; None where there were none to compare."""
    sentence: str = ""
    """Of a refusal; or what was wrong."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, without the seconds: those are others each time."""
        record = asdict(self)
        del record["seconds"]
        if self.difference is not None:
            record["difference"] = float(f"{self.difference:.0e}") if math.isfinite(self.difference) else None
        return record


def try_cell(name: str, column_name: str) -> Outcome:
    """Train a kind under a strategy, and in a plain loop; return what came of it, and raise nothing."""
    column, began = COLUMNS[column_name], time.monotonic()
    plain = plainly(name, shares_of(KINDS[name], column))
    with tempfile.TemporaryDirectory(prefix="stratagem-parity-") as folder:
        try:
            ranks = _workers(column).run(
                column.processes,
                train_in_rank,
                name,
                column.strategy,
                {**column.options, **KINDS[name].options.get(column.strategy, {})},
                column.devices,
                folder,
                timeout_s=HANGS_AFTER_S * (2 if column.own_processes else 1),
            )
        except RankError as error:
            refusal = first_refusal(folder) if error.error is not None else ""
            verdict, sentence = ("refused", refusal) if refusal else _failure(error)
            return Outcome(name, column_name, verdict, None, sentence, time.monotonic() - began)
    if isinstance(ranks[0], Refused):
        return Outcome(name, column_name, "refused", None, ranks[0].sentence, time.monotonic() - began)
    tolerance = column.tolerances.get(name, (KINDS[name].tolerance, ""))[0]
    verdict, difference, sentence = compare(plain, ranks, tolerance)
    return Outcome(name, column_name, verdict, difference, sentence, time.monotonic() - began)


def shares_of(kind: Kind, column: Column) -> int:
    """Return into how many parts the plain loop splits a global batch."""
    if not kind.per_share:
        return 1
    whole = kind.asks_share or (kind.per_process and column.processes == 1)
    return column.copies * (1 if whole else column.parts)


@cache
def plainly(name: str, shares: int) -> TrainingRecord:
    """Train a kind in a plain loop, in a process of its own."""
    trained: TrainingRecord = shared_workers("plain loops").run(1, train_plainly, name, shares)[0]
    update = distance(trained.weights, trained.start or {})
    assert KINDS[name].trains_nothing or update > 0 or not trained.start, (
        f"{name}: the plain loop changed nothing"
    )
    assert math.isfinite(update), f"the plain loop of {name} ended with values that aren't finite"
    return trained


def compare(
    plain: TrainingRecord, ranks: Iterable[TrainingRecord], tolerance: float
) -> tuple[str, float, str]:
    """Hold what ranks saved and have against the plain loop."""
    worst = 0.0
    for rank, trained in enumerate(ranks):
        if trained.steps != plain.steps:
            return "wrong", math.inf, f"rank {rank} made {trained.steps} steps, and one process {plain.steps}"
        expected = {_plain_name(key): value for key, value in plain.weights.items()}
        start = {_plain_name(key): value for key, value in plain.start.items()}
        whole = {_plain_name(key): value for key, value in trained.weights.items()}
        if whole.keys() != expected.keys():
            unlike = sorted(whole.keys() ^ expected.keys())
            return "wrong", math.inf, f"saved other tensors than there are: {', '.join(unlike[:4])}"
        for values, where in ((whole, "saved"), (trained.own, f"on rank {rank}")):
            named = {_plain_name(key): value for key, value in values.items()}
            apart, tensor = difference(named, expected, start)
            if not apart <= tolerance:
                return "wrong", apart, f"{tensor} ({where}) is {apart:.1e} of its update away"
            worst = max(worst, apart)
    return "equal", worst, ""


def difference(
    ours: Mapping[str, Tensor], plain: Mapping[str, Tensor], start: Mapping[str, Tensor]
) -> tuple[float, str]:
    """Return the largest distance of a tensor from plain PyTorch's, by how far training moved it."""
    moved = {name: _moved(start[name], plain[name]) if name in start else math.inf for name in plain}
    floor = FLOOR * max((rms for rms in moved.values() if math.isfinite(rms)), default=0.0)

    def allowed(name: str) -> float:
        if name in start:
            return max(floor, moved[name])
        # A lazy parameter had no value at the start, and so has come no known way.
        return rms_difference(plain[name], torch.zeros_like(plain[name]))

    return furthest(ours, plain, allowed)


def distance(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Return the largest root mean square by which a tensor differs."""
    return max((_moved(theirs[name], value) for name, value in ours.items() if name in theirs), default=0.0)


def _moved(start: Tensor, end: Tensor) -> float:
    """Return the root mean square by which a tensor was changed; NaN if its shape was."""
    return rms_difference(end, start) if end.shape == start.shape else math.nan


def _plain_name(key: str) -> str:
    """Leave out what a wrapper for compilation or recomputation puts into names."""
    return key.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def _failure(error: RankError) -> tuple[str, str]:
    text, cause = str(error).strip(), error.error
    if isinstance(cause, StratagemError) and not isinstance(cause, (CollectiveError, WorkerError)):
        return "refused", str(cause)
    first = str(cause).strip().partition("\n")[0] if cause is not None else text.rpartition("\n")[2]
    sentence = f"{type(cause).__name__}: {first}" if cause is not None else first
    hung = isinstance(cause, CollectiveError) or " hung: " in text or "Timed out" in text
    return "hung" if hung else "crashed", sentence


def _workers(column: Column) -> Workers:
    return shared_workers(f"parity of {column.strategy}" if column.own_processes else "parity")
