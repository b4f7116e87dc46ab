"""`verify_loop`: whether your own training loop, a function of a `Runtime`, trains as one process does.

The ranks' batches are kept and given to one process, joined step by step: the data has to come from
`runtime.dataloader`.
"""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from stratagem_testing.record import TrainingRecord, gather_whole
from stratagem_testing.subject import SEED, StrategySubject
from stratagem_testing.workers import RankError, shared_workers
from torch import nn

from stratagem import Prepared, Runtime
from stratagem.errors import UsageError
from stratagem_verify import state
from stratagem_verify.compare import weights_apart
from stratagem_verify.plan import OneProcess
from stratagem_verify.session import Finding, reason

if TYPE_CHECKING:
    from stratagem_verify.verification import Verification

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
Load = Callable[[], Callable[[Runtime], Any]]
SHARE = 0.01
"""How far weights may be apart, in parts of the way that training has gone."""


def is_loop(function: Any) -> bool:
    """Whether a target is a training loop: a function whose first parameter is called `runtime`."""
    if inspect.isclass(function):
        return False
    return next(iter(inspect.signature(function).parameters), "") == "runtime"


@dataclass(kw_only=True)
class LoopResult(TrainingRecord):
    """What a loop came to on one rank: weights of all modules, by their place among those that were set up."""

    batches: int = 0
    batch_norms: bool = False


class _Kept:
    """A loader whose batches are kept, epoch by epoch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.epochs: list[list[Any]] = []

    def __iter__(self) -> Iterator[Any]:
        self.epochs.append([])
        for batch in self._loader:
            self.epochs[-1].append(batch)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Joined(_Kept):
    """Gives the batches that ranks had, joined."""

    def __init__(self, loader: Any, ranks: list[list[list[Any]]]) -> None:
        super().__init__(loader)
        self._rows = [list(zip(*epoch)) for epoch in zip(*ranks)]

    def __iter__(self) -> Iterator[Any]:
        self.epochs.append([])
        for row in self._rows[len(self.epochs) - 1] if len(self.epochs) <= len(self._rows) else ():
            self.epochs[-1].append(row)
            yield state.joined(row)

    def __len__(self) -> int:
        return len(self._rows[0])


class _WatchedRuntime(Runtime):
    """Keeps batches and the weights at the start; gives kept batches where `replayed` has some."""

    def watch(self, replayed: list[list[list[list[Any]]]] | None = None) -> None:
        self.loaders: list[_Kept] = []
        self.result, self.replayed = LoopResult(), replayed
        self.count = 0

    def all_prepared(self) -> list[Prepared]:
        """What was set up, in order."""
        return list(self._prepared)

    def setup(self, module: nn.Module, *optimizers: Any, **options: Any) -> Any:
        for each in module.modules():
            if isinstance(each, DROPOUTS):
                each.p = 0.0  # a batch and its parts would draw different numbers
            self.result.batch_norms |= isinstance(each, BATCH_NORMS)
        tensors = module.state_dict()
        self.result.start.update({f"{self.count}/{name}": t.detach().clone() for name, t in tensors.items()})
        self.count += 1
        return super().setup(module, *optimizers, **options)

    def dataloader(self, loader: Any, *, evaluation: bool = False, **options: Any) -> Any:
        made = super().dataloader(loader, evaluation=evaluation, **options)  # type: ignore[call-overload]  # overloads take literals only
        if evaluation:
            return made
        index = len(self.loaders)
        kept = _Kept(made)
        if self.replayed is not None:
            kept = _Joined(made, [rank[index] for rank in self.replayed])
        self.loaders.append(kept)
        return kept


def run_loop(
    subject: StrategySubject, load: Load, folder: str, precision: str, replays: bool = False
) -> LoopResult:
    """Run a loop under a strategy, or again in one process on the batches that ranks had. Run by every rank."""
    runtime = _WatchedRuntime(**subject.selection(), precision=precision, seed=SEED, run_dir=f"{folder}/run")
    replayed = None
    if replays:
        files = sorted(Path(folder).glob("batches-*.pt"), key=lambda path: int(path.stem.partition("-")[2]))
        replayed = [torch.load(path, weights_only=False) for path in files]
    result: LoopResult = runtime.launch(_called, load, folder, replayed, quiet=True)
    return result


def _called(runtime: _WatchedRuntime, load: Load, folder: str, replayed: Any) -> LoopResult:
    runtime.watch(replayed)
    load()(runtime)
    session, result = runtime.session, runtime.result
    tensors = {
        f"{index}/{key.removeprefix('model/')}": tensor
        for index, prepared in enumerate(runtime.all_prepared())
        for key, tensor in prepared.model_tensors().items()
    }
    name = "alone" if replayed is not None else "ranks"
    result.weights = gather_whole(session.checkpointer, tensors, f"{folder}/weights-{name}")
    result.batches = sum(len(epoch) for loader in runtime.loaders for epoch in loader.epochs)
    if replayed is None:
        torch.save([loader.epochs for loader in runtime.loaders], f"{folder}/batches-{runtime.data_rank}.pt")
        runtime.barrier("verify: captured")
    return result


def verify_loop(
    load: Load,
    subject: StrategySubject,
    *,
    settings: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda name: None,
) -> Verification:
    """Run a loop under a strategy and in one process on the same global batches, and compare all weights.

    Args:
        load: returns the loop, a function of a `Runtime`; pickled, and called in every worker.
        subject: the strategy, the accelerator, and on how many devices.
        settings: `precision`; nothing else is a loop's.
        tell: called with the name of each run, before it.

    Raises:
        UsageError: a setting that a loop doesn't have.
    """
    from stratagem_verify.verification import Verification

    given = dict(settings or {})
    precision = str(given.pop("precision", "32-true"))
    given.pop("seed", None)
    if given:
        raise UsageError(
            f"your own loop has no setting {sorted(given)[0]!r}: leave it out, and write it in the loop"
        )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stratagem-verify-") as folder:
        subject = replace(subject, folder=folder)
        findings = _findings(subject, load, folder, precision, tell)
    seconds = round(time.monotonic() - began, 1)
    return Verification(
        subject.name, subject.accelerator, subject.world_size, precision, 0, tuple(findings), seconds
    )


def _findings(
    subject: StrategySubject, load: Load, folder: str, precision: str, tell: Callable[[str], None]
) -> list[Finding]:
    tell("your loop")
    workers, count = shared_workers(f"verify a loop under {subject.name}"), subject.processes()
    try:
        ranks = workers.run(count, run_loop, subject, load, folder, precision, timeout_s=subject.timeout_s)
    except RankError as error:
        return [Finding("run", "wrong", f"fails under {subject.name}: {reason(error)}")]
    first = ranks[0]
    if not first.batches:
        return [
            Finding(
                "run",
                "note",
                "read no batch from runtime.dataloader(...), so that one process can't be given the batches of all "
                "ranks: nothing was compared",
            )
        ]
    found = [Finding("run", "right", f"{first.batches} batches per rank in {count} processes")]
    alone = replace(subject, strategy=OneProcess, options={}, options_for={}, options_at={}, world_size=1)
    tell("your loop in one process")
    try:
        theirs = shared_workers("verify in one process").run(
            1, run_loop, alone, load, folder, precision, True, timeout_s=subject.timeout_s
        )[0]
    except RankError as error:
        return [*found, Finding("loop", "note", f"not compared: in one process it fails: {reason(error)}")]
    if first.weights.keys() != theirs.weights.keys():
        unlike = sorted(first.weights.keys() ^ theirs.weights.keys())
        return [*found, Finding("loop", "wrong", f"has other weights than in one process, as {unlike[0]!r}")]
    names = [name for name in theirs.weights if name in theirs.start]
    apart = weights_apart(first.weights, theirs.weights, theirs.start, None, names, SHARE)
    if apart is None:
        return [
            *found,
            Finding("loop", "right", f"after it, all {len(names)} tensors are those of one process"),
        ]
    name, share = apart
    text = (
        f"{name.partition('/')[2]!r} of module {int(name.partition('/')[0]) + 1} is away from one process's by "
        f"{share:.1%} of the way that it went"
    )
    if first.batch_norms:
        return [
            *found,
            Finding("loop", "note", f"{text}; batch norm normalizes each rank's own batch, by definition"),
        ]
    return [
        *found,
        Finding(
            "loop",
            "wrong",
            f"{text}: look for gradients or weights that the loop takes from one rank's samples alone",
        ),
    ]
