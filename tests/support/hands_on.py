"""Own loops that take gradients, parameters and optimizers into their own hands, under a strategy and without.

    python -m tests.support.hands_on ddp fsdp --devices 2 3          rows under strategies, failures last
    run_rows("fsdp", ["norm_idiom", "two_views"], devices=3)          the same from Python

A row (tests/parity/hands_on_rows.py) is a training loop: a function of a `Loop`. `PlainLoop` runs it in one process
on the global batches, `StrategyLoop` in each rank on its share of them. Ranks never have equal data.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from stratagem_model_parallel.conformance import shards_of_batches
from stratagem_testing.record import TrainingRecord, gather_whole
from stratagem_testing.workers import RankError, shared_workers
from torch import Tensor, nn

import stratagem
from stratagem.errors import CollectiveError, ReplicaError, StratagemError, WorkerError
from tests.parity.cell import difference
from tests.parity.columns import ACCELERATOR, COLUMNS, Column
from tests.parity.trained import all_refused, first_refusal

SAMPLES = 12
"""In a global batch: 1, 2, 3 and 4 ranks share them evenly."""
TOLERANCE = 1e-4
"""Relative to how far training moved a tensor."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-5}
"""The same of rows, by the dtype of their tensors."""
KEEP_FLOAT32 = ("deepspeed", *(f"deepspeed_stage_{stage}" for stage in (1, 2, 3)))
"""Strategies whose engine has no float64."""
STAGE_0 = replace(COLUMNS["deepspeed_stage_1"], strategy="deepspeed")
_CUT = {"timeout_s": 20, "axis_options": {"context": {"parallelize": shards_of_batches}}}
FURTHER = {
    "deepspeed_stage_0": replace(STAGE_0, options={**STAGE_0.options, "stage": 0}),
    **{axes: Column(axes, options=_CUT) for axes in ("context=2", "shard=2+context=2")},
}
"""Columns under names that aren't strategies'."""
DEADLINE_S = 75.0
"""Of a row: longer than the process group's own timeout."""
VERDICTS = ("equal", "refused", "guarded", "wrong", "raw", "hung")


class Loop:
    """What a row may use: the part of `Runtime` that own loops use, and its share of the data."""

    rank, ranks = 0, 1
    """Which share of the data this process reads, of how many."""
    device = torch.device("cpu")
    runtime: stratagem.Runtime | None = None
    """For what plain PyTorch has to write out."""
    part: int | None = None
    """Of a loop that a first process ends in the middle, and a second one resumes: 0, and then 1."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Any]] = []
        """Values that have to be equal on all ranks to those of one process."""
        self.copies: dict[str, nn.Module] = {}
        """Modules that aren't set up, and whose weights count, too."""

    def setup(self, module: nn.Module, *optimizers: Any, **options: Any) -> Any: ...

    def backward(self, loss: Tensor, module: nn.Module | None = None) -> None: ...

    def no_sync(self, module: nn.Module | None = None) -> AbstractContextManager[Any]: ...

    def clip(self, optimizer: Any, **limits: Any) -> Any: ...

    def average_gradients(self, optimizer: Any) -> None: ...

    def save(self, path: str, state: dict[str, Any]) -> None: ...

    def load(self, path: str, state: dict[str, Any]) -> dict[str, Any]: ...

    def share(self, batch: Any) -> Any:
        """Return this process's samples of a global batch."""
        size = SAMPLES // self.ranks
        own = slice(self.rank * size, (self.rank + 1) * size)
        return tuple(each[own] for each in batch) if isinstance(batch, tuple) else batch[own]

    def batches(self, count: int, seed: int = 11) -> Iterable[tuple[Tensor, Tensor]]:
        """Return this process's shares of `count` global batches of inputs and targets."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(count):
            x = torch.randn(SAMPLES, 6, generator=generator)
            # Ranks come first to last: shares differ in size of inputs and of losses.
            x *= torch.linspace(0.5, 1.5, SAMPLES).unsqueeze(1)
            y = torch.randn(SAMPLES, 3, generator=generator)
            yield self.share((x.to(self.device), y.to(self.device)))

    def note(self, name: str, value: Any) -> None:
        """Keep a number that the loop would print or decide by."""
        value = value.detach() if isinstance(value, Tensor) else value
        self.notes.append(
            (name, [float(each) for each in value] if isinstance(value, list) else float(value))
        )

    def keep(self, **modules: nn.Module) -> None:
        """Compare the weights of these, too."""
        self.copies.update(modules)

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a number over ranks."""
        return value


class PlainLoop(Loop):
    """Plain PyTorch in one process."""

    def __init__(self, precision: str = "32-true") -> None:
        super().__init__()
        self.precision = precision
        self.modules: list[nn.Module] = []

    def setup(self, module: nn.Module, *optimizers: Any, **options: Any) -> Any:
        self.modules.append(module)
        if self.precision == "bf16-mixed":
            forward = torch.autocast("cpu", torch.bfloat16)(module.forward)
            module.forward = lambda *args: forward(*args).float()
        made = [each if isinstance(each, torch.optim.Optimizer) else each(module) for each in optimizers]
        return (module, *made) if made else module

    def backward(self, loss: Tensor, module: nn.Module | None = None) -> None:
        loss.backward()

    def no_sync(self, module: nn.Module | None = None) -> AbstractContextManager[Any]:
        return nullcontext()

    def clip(
        self, optimizer: Any, *, max_norm: float | None = None, max_value: float | None = None, **_: Any
    ) -> Any:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if max_value is not None:
            nn.utils.clip_grad_value_(params, max_value)
        return nn.utils.clip_grad_norm_(params, max_norm) if max_norm is not None else None

    def save(self, path: str, state: dict[str, Any]) -> None:
        kept = {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in state.items()}
        self._saved = copy.deepcopy(kept)

    def load(self, path: str, state: dict[str, Any]) -> dict[str, Any]:
        for key, value in state.items():
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(copy.deepcopy(self._saved[key]))
            else:
                state[key] = self._saved[key]
        return state


class StrategyLoop(Loop):
    """The same by a live `Runtime`."""

    def __init__(self, runtime: stratagem.Runtime, folder: str, part: int | None = None) -> None:
        super().__init__()
        self.runtime: stratagem.Runtime = runtime
        self.folder, self.part = folder, part
        self.rank, self.ranks, self.device = runtime.data_rank, runtime.data_ranks, runtime.device
        # An instance's own, in place of those of the class.
        self.setup, self.backward = runtime.setup, runtime.backward  # type: ignore[method-assign]  # as above
        self.no_sync, self.clip = runtime.no_sync, runtime.clip  # type: ignore[method-assign]  # as above
        self.average_gradients = runtime.average_gradients  # type: ignore[method-assign]  # as above

    def save(self, path: str, state: dict[str, Any]) -> None:
        self.runtime.save(f"{self.folder}/{path}", self._users(state))

    def load(self, path: str, state: dict[str, Any]) -> dict[str, Any]:
        # Modules and optimizers that were set up are kept and loaded without being named.
        users = self._users(state)
        self.runtime.load(f"{self.folder}/{path}", users)
        state.update(users)
        return state

    def mean(self, value: Tensor) -> Tensor:
        return self.runtime.collectives.data.all_reduce(value.detach())

    def _users(self, state: dict[str, Any]) -> dict[str, Any]:
        ours = (nn.Module, torch.optim.Optimizer)
        return {k: v for k, v in state.items() if not isinstance(v, ours)}


Row = Callable[[Loop], None]


@dataclass(kw_only=True)
class Ended(TrainingRecord):
    """What a row came to in one process: tensors of all modules, under the number of each."""

    notes: list[tuple[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """What came of a row under a strategy.

    `verdict` is "equal"; "refused" by a sentence; "guarded", where only the comparison of replicas ended it; "wrong"
    without a word; "raw", an error that isn't Stratagem's; or "hung".
    """

    row: str
    strategy: str
    devices: int
    verdict: str
    sentence: str = ""
    traceback: str = ""
    difference: float | None = None
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        return self.verdict in ("equal", "refused")

    def __str__(self) -> str:
        said = " ".join(self.sentence.split())[:300]
        return f"{self.strategy} ×{self.devices} {self.row}: {self.verdict} {said}"


def run_rows(
    strategy: str,
    rows: Iterable[str] | None = None,
    devices: int = 2,
    *,
    options: Mapping[str, Any] | None = None,
    precision: str = "32-true",
    deadline_s: float = DEADLINE_S,
    report: Callable[[Outcome], None] | None = None,
) -> dict[str, Outcome]:
    """Run rows under a strategy; return what came of each, and raise nothing.

    Args:
        strategy: a name.
        rows: names; None is all.
        devices: ranks, or devices of one process.
        options: of the strategy, beyond those of its column in tests/parity/columns.py.
        precision: "32-true" or "bf16-mixed".
        deadline_s: after which a row is ended.
        report: is called with each outcome.
    """
    from tests.parity.hands_on_rows import ROWS

    column = column_of(strategy, devices, options or {})
    dtype = torch.float32 if column.strategy in KEEP_FLOAT32 else torch.float64
    loops = {name: InDtype(ROWS[name], dtype) for name in (ROWS if rows is None else rows)}
    tolerance = TOLERANCES[dtype]
    outcomes = _run_together(loops, column, precision, deadline_s, tolerance)
    for name, row in loops.items():
        if name not in outcomes:
            began = time.monotonic()
            outcome = run_program(row, name, column, precision, deadline_s, tolerance)
            outcomes[name] = replace(outcome, seconds=time.monotonic() - began)
        outcomes[name] = replace(outcomes[name], strategy=strategy)
        if report is not None:
            report(outcomes[name])
    return outcomes


def check_rows(
    strategy: str,
    rows: Iterable[str],
    refused: Mapping[str, str],
    devices: int = 2,
    **options: Any,
) -> None:
    """Hold each row to one process's numbers, or to a refusal.

    Args:
        strategy: a name.
        rows: names.
        refused: name of a row → an expression that finds its sentence; the others aren't refused.
        devices: ranks, or devices of one process.
        options: of the strategy.
    """
    outcomes = run_rows(strategy, rows, devices, options=options)
    wrong = [
        str(each)
        for name, each in outcomes.items()
        if each.verdict != ("refused" if name in refused else "equal")
        or not re.search(refused.get(name, ""), each.sentence)
    ]
    assert not wrong, "\n".join(wrong)


@dataclass(frozen=True)
class InDtype:
    """A row whose tensors have a dtype, where it says none."""

    row: Row
    dtype: torch.dtype

    def __call__(self, run: Loop) -> None:
        usual = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            self.row(run)
        finally:
            torch.set_default_dtype(usual)


def _run_together(
    loops: Mapping[str, Row], column: Column, precision: str, deadline_s: float, tolerance: float
) -> dict[str, Outcome]:
    """Run rows one after the other in the same processes; {} where one ends these, so that each has to run alone."""
    purpose = f"hands-on {column.strategy}" if column.own_processes else "hands-on"
    with tempfile.TemporaryDirectory(prefix="stratagem-hands-on-") as folder:
        try:
            ranks = shared_workers(purpose).run(
                column.processes,
                _all_in_rank,
                dict(loops),
                column,
                precision,
                folder,
                timeout_s=deadline_s + 5 * len(loops),
            )
        except RankError:
            return {}
    outcomes = {}
    for name, row in loops.items():
        ended = [each[name] for each in ranks]
        if isinstance(ended[0], tuple):
            outcomes[name] = Outcome(name, column.strategy, column.devices, *ended[0])
            continue
        verdict, sentence, worst = compare(run_plainly(row, precision), ended, tolerance)
        outcomes[name] = Outcome(name, column.strategy, column.devices, verdict, sentence, difference=worst)
    return outcomes


def _all_in_rank(
    loops: Mapping[str, Row], column: Column, precision: str, folder: str
) -> dict[str, Ended | tuple[str, str, str]]:
    ended = {}
    for name, row in loops.items():
        Path(folder, name).mkdir(exist_ok=True)
        ended[name] = _in_rank(row, column, precision, f"{folder}/{name}")
    return ended


def run_program(
    row: Row,
    name: str,
    column: Column,
    precision: str = "32-true",
    deadline_s: float = DEADLINE_S,
    tolerance: float = TOLERANCE,
    parts: int = 1,
) -> Outcome:
    """Run one loop in one process and under a strategy; `row` is a function that can be pickled.

    With `parts=2`, processes of the strategy end in the middle and others resume; one process runs through.
    """
    devices = column.devices
    plain = run_plainly(row, precision)
    if not all(bool(value.isfinite().all()) for value in plain.weights.values()):
        raise ValueError("in one process, weights end as values that aren't finite: nothing can be compared")
    purpose = f"hands-on {column.strategy}" if column.own_processes else "hands-on"
    with tempfile.TemporaryDirectory(prefix="stratagem-hands-on-") as folder:
        taken: list[list[tuple[str, Any]]] = [[] for _ in range(column.processes)]
        for part in range(parts):
            try:
                ranks = shared_workers(f"{purpose} {part}" if part else purpose).run(
                    column.processes,
                    _in_rank,
                    row,
                    column,
                    precision,
                    folder,
                    part if parts > 1 else None,
                    timeout_s=deadline_s,
                )
            except RankError as error:
                return _failed(name, column, error, folder)
            if isinstance(ranks[0], tuple):
                return Outcome(name, column.strategy, devices, ranks[0][0], ranks[0][1], ranks[0][2])
            for notes, ended in zip(taken, ranks):
                notes += ended.notes
        ranks = [replace(ended, notes=notes) for ended, notes in zip(ranks, taken)]
    verdict, sentence, worst = compare(plain, ranks, tolerance)
    return Outcome(name, column.strategy, devices, verdict, sentence, difference=worst)


def run_plainly(row: Row, precision: str = "32-true") -> Ended:
    """Run a loop in this process, in plain PyTorch."""
    loop = PlainLoop(precision)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start: dict[str, Tensor] = {}
        loop_setup = loop.setup

        def setup(module: nn.Module, *optimizers: Any, **options: Any) -> Any:
            index = len(loop.modules)
            start.update({f"{index}/{k}": v.detach().clone() for k, v in module.state_dict().items()})
            return loop_setup(module, *optimizers, **options)

        loop.setup = setup  # type: ignore[method-assign]  # records the start of this loop only
        row(loop)
    weights = {
        f"{index}/{name}": value.detach().clone()
        for index, module in enumerate(loop.modules)
        for name, value in module.state_dict().items()
    }
    return Ended(weights=weights, own=_copied(loop), notes=loop.notes, start=start)


def compare(plain: Ended, ranks: Sequence[Ended], tolerance: float = TOLERANCE) -> tuple[str, str, float]:
    """Hold each rank's weights, copies and notes against one process's."""
    worst = 0.0
    for rank, ended in enumerate(ranks):
        if ended.weights.keys() != plain.weights.keys():
            unlike = sorted(ended.weights.keys() ^ plain.weights.keys())
            return "wrong", f"other tensors than in one process: {', '.join(unlike[:4])}", float("inf")
        for values, where in ((ended.weights, "saved"), (ended.own, f"on rank {rank}")):
            known = {**plain.weights, **plain.own}
            apart, tensor = difference(values, known, plain.start)
            if not apart <= tolerance:
                return "wrong", f"{tensor} ({where}) is {apart:.1e} of its update away", apart
            worst = max(worst, apart)
        if [name for name, _ in ended.notes] != [name for name, _ in plain.notes]:
            return "wrong", f"rank {rank} took {len(ended.notes)} notes, not {len(plain.notes)}", float("inf")
        for (name, mine), (_, theirs) in zip(ended.notes, plain.notes):
            ours, others = torch.tensor(mine).double(), torch.tensor(theirs).double()
            if ours.shape != others.shape or not torch.allclose(
                ours, others, rtol=tolerance, atol=tolerance / 100
            ):
                shown = f" is {mine} on rank {rank}, and {theirs} in one process"
                return "wrong", name + (shown if ours.ndim == 0 else " differ"), float("inf")
    return "equal", "", worst


def column_of(strategy: str, devices: int, options: Mapping[str, Any] = MappingProxyType({})) -> Column:
    """Return how a strategy is set up here, at any number of devices."""
    known = {**COLUMNS, **FURTHER}.get(strategy, Column(strategy, options={"timeout_s": 20}))
    processes = 1 if known.processes == 1 else devices
    copies = devices if known.copies > 1 else known.copies
    return replace(
        known, devices=devices, processes=processes, copies=copies, options={**known.options, **options}
    )


def _in_rank(
    row: Row, column: Column, precision: str, folder: str, part: int | None = None
) -> Ended | tuple[str, str, str]:
    rank = os.environ.get("RANK", "0")
    try:
        runtime = stratagem.Runtime(
            column.strategy,
            ACCELERATOR,
            column.devices,
            strategy_options=dict(column.options),
            precision=precision,
            seed=0,
            run_dir=f"{folder}/run-{part or 0}-{rank}",
        )
        return runtime.launch(_row_in_run, row, folder, part, quiet=True)
    except StratagemError as error:
        refused = not isinstance(error, (CollectiveError, WorkerError))
        Path(folder, f"{'refused' if refused else 'failed'}-{rank}").write_text(
            f"{type(error).__name__}: {error}", encoding="utf-8"
        )
        if not all_refused(folder) or dist.is_initialized():
            raise
        verdict = "guarded" if isinstance(error, ReplicaError) else "refused"
        return verdict, str(error), traceback.format_exc()
    except BaseException:
        Path(folder, f"failed-{rank}").touch()
        raise


def _row_in_run(runtime: stratagem.Runtime, row: Row, folder: str, part: int | None) -> Ended:
    torch.manual_seed(0)
    loop = StrategyLoop(runtime, folder, part)
    row(loop)
    session = runtime.session
    tensors = {
        f"{index}/{key.removeprefix('model/')}": tensor
        for index, prepared in enumerate(runtime._prepared)
        for key, tensor in prepared.model_tensors().items()
    }
    whole = gather_whole(session.checkpointer, tensors, f"{folder}/weights-{part or 0}")
    own = _copied(loop)
    for index, prepared in enumerate(runtime._prepared):
        for name, value in prepared.original_module.named_parameters():
            known = whole.get(f"{index}/{name}")
            is_whole = type(value.data) is Tensor and not value.is_meta
            if is_whole and known is not None and (value.shape, value.dtype) == (known.shape, known.dtype):
                own[f"{index}/{name}"] = value.detach().to("cpu", copy=True)
    return Ended(weights=whole, own=own, notes=loop.notes)


def _copied(loop: Loop) -> dict[str, Tensor]:
    values = {}
    for key, module in loop.copies.items():
        for name, value in module.state_dict().items():
            full = value.full_tensor() if hasattr(value, "full_tensor") else value
            values[f"{key}.{name}"] = full.detach().to("cpu", copy=True)
    return values


def _failed(name: str, column: Column, error: RankError, folder: str) -> Outcome:
    text, cause = str(error).strip(), error.error
    refusal = first_refusal(folder) if cause is not None else ""
    if refusal:
        kind, _, sentence = refusal.partition(": ")
        verdict = "guarded" if kind == "ReplicaError" else "refused"
        return Outcome(name, column.strategy, column.devices, verdict, sentence, text)
    first = str(cause).strip().partition("\n")[0] if cause is not None else text.rpartition("\n")[2]
    sentence = f"{type(cause).__name__}: {first}" if cause is not None else first
    hung = isinstance(cause, CollectiveError) or " hung: " in text or "Timed out" in text
    return Outcome(name, column.strategy, column.devices, "hung" if hung else "raw", sentence, text)


def keep(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write outcomes over those of the same cells in a file, which is made if there is none."""
    from tests.parity.hands_on_rows import ROWS

    cells = json.loads(path.read_text())["cells"] if path.exists() else []
    new = [
        {
            "row": each.row,
            "strategy": each.strategy,
            "devices": each.devices,
            "verdict": each.verdict,
            "sentence": " ".join(each.sentence.replace(f"{Path.cwd()}/", "").split()),
        }
        for each in outcomes
    ]
    # Columns keep their places, in the order in which they were first run.
    by_place = {(each["row"], each["strategy"], each["devices"]): each for each in [*cells, *new]}
    rows = {name: " ".join((row.__doc__ or name).split()) for name, row in ROWS.items()}
    content = {
        "torch": torch.__version__,
        "rows": rows,
        "cells": [each for each in by_place.values() if each["row"] in rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    from tests.parity.hands_on_rows import ROWS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("strategies", nargs="+")
    parser.add_argument("--devices", nargs="+", type=int, default=[2])
    parser.add_argument("--rows", nargs="+", choices=ROWS, metavar="ROW")
    parser.add_argument("--traceback", action="store_true", help="of failures")
    parser.add_argument("--json", type=Path, help="where to keep the outcomes, for docs/parity.md")
    chosen = parser.parse_args()
    failures = []
    for strategy in chosen.strategies:
        for devices in chosen.devices:
            outcomes = run_rows(strategy, chosen.rows, devices, report=lambda each: print(each, flush=True))
            failures += [each for each in outcomes.values() if not each.is_right]
            if chosen.json is not None:
                keep(chosen.json, outcomes.values())
            counted = {v: sum(each.verdict == v for each in outcomes.values()) for v in VERDICTS}
            print(f"== {strategy} ×{devices}:", *(f"{n} {v}" for v, n in counted.items() if n), flush=True)
    for each in failures:
        print(f"! {each}")
        if chosen.traceback:
            print(each.traceback)


if __name__ == "__main__":
    main()
