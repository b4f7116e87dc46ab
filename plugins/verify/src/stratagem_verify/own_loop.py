"""`verify_loop`: check that your own training loop, a function of a `Runtime`, trains as one process does.

The ranks' batches are recorded, and joined for one process, step by step. So the loop must get its data from
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
"""Allowed difference between weights, relative to their distance from the start."""


def is_loop(function: Any) -> bool:
    """Return whether a target is a training loop: a function whose first parameter is called `runtime`."""
    if inspect.isclass(function):
        return False
    return next(iter(inspect.signature(function).parameters), "") == "runtime"


@dataclass(kw_only=True)
class LoopResult(TrainingRecord):
    """The results of a loop on one rank. Names of weights begin with the index of the module that was set up."""

    batches: int = 0
    batch_norms: bool = False


class _Kept:
    """A loader that records its batches by epoch."""

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
    """Yields the recorded batches of the ranks, joined."""

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
    """Records batches and initial weights. Yields recorded batches if `replayed` has some."""

    def watch(self, replayed: list[list[list[list[Any]]]] | None = None) -> None:
        self.loaders: list[_Kept] = []
        self.result, self.replayed = LoopResult(), replayed
        self.count = 0

    def all_prepared(self) -> list[Prepared]:
        """Return what was set up, in order."""
        return list(self._prepared)

    def setup(self, module: nn.Module, *optimizers: Any, **options: Any) -> Any:
        for each in module.modules():
            if isinstance(each, DROPOUTS):
                each.p = 0.0  # dropout would draw different numbers for a batch and for its parts
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
    """Run a loop under a strategy, or in one process on the ranks' recorded batches. Run by every rank."""
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

    load: returns the loop, a function of a `Runtime`. It is pickled, and called in every worker.
    subject: the strategy, the accelerator, and the number of devices.
    settings: only `precision`; a loop has no other settings.
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
            f"your own loop has no setting {sorted(given)[0]!r}: leave it out, and set it in the loop"
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
                "read no batch from runtime.dataloader(...), so one process can't get the batches of all "
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
        return [*found, Finding("loop", "note", f"not compared: it fails in one process: {reason(error)}")]
    if first.weights.keys() != theirs.weights.keys():
        unlike = sorted(first.weights.keys() ^ theirs.weights.keys())
        return [
            *found,
            Finding("loop", "wrong", f"has other weights than in one process, such as {unlike[0]!r}"),
        ]
    names = [name for name in theirs.weights if name in theirs.start]
    apart = weights_apart(first.weights, theirs.weights, theirs.start, None, names, SHARE)
    if apart is None:
        return [
            *found,
            Finding("loop", "right", f"after it, all {len(names)} tensors are equal to those of one process"),
        ]
    name, share = apart
    text = (
        f"{name.partition('/')[2]!r} of module {int(name.partition('/')[0]) + 1} differs from one process's by "
        f"{share:.1%} of its distance from the start"
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
            f"{text}: look for gradients or weights that the loop computes from one rank's samples only",
        ),
    ]
