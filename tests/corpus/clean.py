"""`python -m tests.corpus.clean`: train right programs under strategies, and count what `diff` says against them.

    make corpus-clean                                       all models under all strategies: docs/gen/clean.json
    python -m tests.corpus.clean --strategies ddp fsdp      under some; nothing is written
    python -m tests.corpus.clean --models TwoLayers Tied    some models

Each model is trained in plain PyTorch in one process, once more with another rounding, and by a `Runtime` under each
strategy, whose ranks read different rows. Each run is compared twice, with measured and with estimated rounding. A
strategy that rejects a model in a sentence is counted as that. The exit code is 1 where a run differs or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from stratagem_diff import compare, record, sentence
from stratagem_model_parallel.conformance import shards_of_batches, whatever_can_be
from stratagem_testing.workers import RankError, shared_workers
from torch import nn

import stratagem
from stratagem.errors import CollectiveError, StratagemError, WorkerError
from tests.corpus.clean_models import MODELS, CleanModel, loss_of
from tests.corpus.measure import ROOT
from tests.parity.columns import ACCELERATOR, Column
from tests.parity.trained import all_refused, first_refusal

STEPS = 3
RESULTS = ROOT / "docs/gen/clean.json"
PAGE = ROOT / "docs/corpus.md"
HEADING = "## Right programs"
_SECTION = """{heading}

`tests/corpus/clean_models.py` has {models} models: layers, convolutions, recurrence, attention, tied, shared and
frozen parameters, micro-batches, clipping, schedules and mixed precision, with eight optimizers. Each is trained in
plain PyTorch in one process, and under each strategy on ranks that read different rows. Each run is compared twice,
with measured and with estimated rounding. `make corpus-clean` trains all, prints this, and writes it here:

```text
{lines}
```
"""
_GROUP = {"timeout_s": 20}
_SPLIT = {**_GROUP, "axis_options": {"tensor": {"parallelize": whatever_can_be}}}

STRATEGIES: dict[str, Column] = {
    "single": Column("single", 1, 1, 1),
    "ddp": Column("ddp", options=_GROUP),
    "ddp_find_unused_parameters_true": Column("ddp_find_unused_parameters_true", options=_GROUP),
    "ddp_sharded": Column("ddp_sharded", options=_GROUP),
    "ddp_fully_sharded": Column("ddp_fully_sharded", options=_GROUP),
    "fsdp": Column("fsdp", options=_GROUP),
    "fsdp_offload": Column("fsdp_offload", options=_GROUP),
    "fairscale_sharded": Column("fairscale_sharded", options=_GROUP),
    "model_parallel": Column("model_parallel", options={**_GROUP, "parallelize": whatever_can_be}),
    "context_parallel": Column("context_parallel", options={**_GROUP, "parallelize": shards_of_batches}),
    "replicate=2": Column("replicate=2", options=_GROUP),
    "shard=2": Column("shard=2", options=_GROUP),
    "tensor=2": Column("tensor=2", options=_SPLIT),
}
"""Name → how it is set up: all whose numbers are to be those of one process."""


@dataclass(frozen=True)
class Run:
    """What came of a model under a strategy."""

    model: str
    strategy: str
    said: str = ""
    """By which sentence the strategy rejects it, or how it failed; "" where it was compared."""
    is_rejected: bool = False
    alarms: tuple[str, ...] = ()
    """What `diff` says of differences, with measured and with estimated rounding."""
    values: int = 0
    """How many values were compared, with measured rounding."""
    left_out: int = 0
    """How many values of the reference weren't."""

    @property
    def is_right(self) -> bool:
        """Whether it was rejected, or compared without an alarm."""
        return self.is_rejected or not (self.said or self.alarms)


def train_plainly(model: CleanModel, folder: str, *, rounding: bool = False) -> None:
    """Train a model in one process, and record it."""
    torch.manual_seed(0)
    module = model.make()
    optimizer = model.optimizer_of(module)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=model.precision == "bf16-mixed")
    with record(module, None, folder, steps=STEPS, rounding=rounding):
        for batches in model.batches(STEPS):
            for inputs, targets in batches:
                with mixed:
                    values = module(inputs)
                (loss_of(values, targets) / len(batches)).backward()
            if model.limit is not None:
                nn.utils.clip_grad_norm_(module.parameters(), model.limit)
            optimizer.step()
            optimizer.zero_grad()
            if model.schedule:
                schedule.step()


def train_by_runtime(runtime: stratagem.Runtime, model: CleanModel, folder: str) -> None:
    """Train a model under a strategy on this rank's rows, and record it."""
    torch.manual_seed(0)
    original = model.make()
    rank, ranks = runtime.data_rank, runtime.data_ranks
    limit = {} if model.limit is None else {"max_norm": model.limit}
    module, optimizer = runtime.setup(
        original, model.optimizer_of, accumulate=model.accumulate, clipping=limit or None
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=10)
    with record(original, None, folder, steps=STEPS):
        for batches in model.batches(STEPS):
            for index, (inputs, targets) in enumerate(batches):
                own, own_targets = (each[rank::ranks] for each in (inputs, targets))
                loss = loss_of(module(own), own_targets) / len(batches)
                if index < len(batches) - 1:
                    with runtime.no_sync(module):
                        runtime.backward(loss, module)
                else:
                    runtime.backward(loss, module)
            if limit:
                runtime.clip(optimizer, **limit)
            optimizer.step()
            optimizer.zero_grad()
            if model.schedule:
                schedule.step()


def run_strategy(
    strategy: str,
    models: Iterable[str],
    references: Path,
    train: Callable[[stratagem.Runtime, CleanModel, str], None] = train_by_runtime,
) -> list[Run]:
    """Train models under a strategy in the same processes, one after the other, and compare each with its reference.

    Args:
        strategy: a name of `STRATEGIES`.
        models: names of `MODELS`.
        references: the folder that `make_references` wrote.
        train: what each rank calls; a function that can be pickled.
    """
    column = STRATEGIES[strategy]
    found: list[Run] = []
    waiting = list(models)
    while waiting:
        with tempfile.TemporaryDirectory(prefix="stratagem-clean-") as folder:
            done, failed = waiting, None
            try:
                shared_workers("clean").run(
                    column.processes,
                    _in_rank,
                    column,
                    waiting,
                    folder,
                    train,
                    timeout_s=60 + 5 * len(waiting),
                )
            except RankError as error:
                # A model that ends its processes leaves those after it to others.
                ends = [len(list(Path(folder, each).glob("ended-*"))) == column.processes for each in waiting]
                index = ends.index(False)
                said = first_refusal(f"{folder}/{waiting[index]}")
                last = str(error).strip().splitlines()[-1]
                done, failed = waiting[:index], Run(waiting[index], strategy, said or last, bool(said))
            found += [_outcome(each, strategy, folder, references) for each in done]
            if failed is not None:
                found.append(failed)
        waiting = waiting[len(done) + 1 :]
    return found


def make_references(models: Iterable[str], folder: Path) -> None:
    """Train each model in this process, and once more with another rounding."""
    for name in models:
        for rounding in (False, True):
            part = "rounding" if rounding else "reference"
            train_plainly(MODELS[name], f"{folder}/{name}/{part}", rounding=rounding)


def _in_rank(column: Column, models: Sequence[str], folder: str, train: Callable[..., None]) -> None:
    rank = os.environ.get("RANK", "0")
    torch.set_num_threads(1)
    for name in models:
        model = MODELS[name]
        own = Path(folder, name)
        own.mkdir(exist_ok=True)
        try:
            runtime = stratagem.Runtime(
                column.strategy,
                ACCELERATOR,
                column.devices,
                strategy_options=dict(column.options),
                precision=model.precision,
                seed=0,
                run_dir=f"{own}/run-{rank}",
                check_replicas_every=0,
            )
            runtime.launch(train, model, f"{own}/record", quiet=True)
        except StratagemError as error:
            is_refusal = not isinstance(error, (CollectiveError, WorkerError))
            kind = "refused" if is_refusal else "failed"
            (own / f"{kind}-{rank}").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
            if not all_refused(own) or dist.is_initialized():
                raise
        except BaseException:
            (own / f"failed-{rank}").write_text(traceback.format_exc(), encoding="utf-8")
            raise
        (own / f"ended-{rank}").touch()


def _outcome(model: str, strategy: str, folder: str, references: Path) -> Run:
    said = first_refusal(f"{folder}/{model}")
    if said:
        return Run(model, strategy, said, True)
    reference, rounding = references / model / "reference", references / model / "rounding"
    results = [compare(reference, f"{folder}/{model}/record", measured) for measured in ([rounding], [])]
    alarms = tuple(sentence(each) for each in results if each.first is not None)
    first = results[0]
    places = sum(place.kind != "input" for place in first.ours.places)
    return Run(model, strategy, "", False, alarms, first.compared, places - first.compared)


def totals(runs: Sequence[Run]) -> str:
    """Return one line of counts."""
    compared = [each for each in runs if not each.said]
    rejected = sum(each.is_rejected for each in runs)
    failed = sum(bool(each.said) and not each.is_rejected for each in runs)
    alarms = sum(bool(each.alarms) for each in runs)
    values, left_out = (sum(getattr(each, name) for each in runs) for name in ("values", "left_out"))
    return (
        f"{len(compared)} clean runs compared, {alarms} false alarms, {rejected} rejected, {failed} failed; "
        f"{values} values compared, {left_out} not"
    )


def section() -> str:
    """Return the end of docs/corpus.md, by the results that were kept."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = [f"{name}: {line}" for name, line in found["strategies"].items()]
    return _SECTION.format(heading=HEADING, models=found["models"], lines="\n".join([*lines, found["all"]]))


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="MODEL", default=list(MODELS))
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    chosen = parser.parse_args(arguments)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="stratagem-clean-") as folder:
        make_references(chosen.models, Path(folder))
        for strategy in chosen.strategies:
            mine = run_strategy(strategy, chosen.models, Path(folder))
            for each in mine:
                for line in each.alarms or ([each.said] if each.said else []):
                    print(f"{each.strategy} {each.model}: {' '.join(line.split())[:300]}", flush=True)
            print(f"{strategy}: {totals(mine)}", flush=True)
            runs += mine
    everything = f"{len(chosen.models)} models, {len(chosen.strategies)} strategies: {totals(runs)}"
    print(everything)
    if (chosen.models, chosen.strategies) == (list(MODELS), list(STRATEGIES)):
        lines = {each: totals([run for run in runs if run.strategy == each]) for each in STRATEGIES}
        content = {"models": len(MODELS), "strategies": lines, "all": everything}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        before = PAGE.read_text(encoding="utf-8").partition(HEADING)[0]
        PAGE.write_text(f"{before.rstrip()}\n\n{section()}", encoding="utf-8")
    return int(not all(each.is_right for each in runs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
