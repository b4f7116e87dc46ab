"""`Capsules`: keeps the batches and random numbers of steps as a fit trains."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.callbacks import Callback

from stratagem.errors import ConfigError
from stratagem.sdk.loops import capture_rng
from stratagem_capsule.base import checksums, first_non_finite, link_checkpoint
from stratagem_capsule.batches import encoded
from stratagem_capsule.errors import CapsuleError
from stratagem_capsule.files import (
    FOLDER,
    Base,
    Event,
    Segment,
    attempts_in,
    read_events,
    segments_in,
    step_of,
    write_event,
    write_segment,
)
from stratagem_capsule.host_copy import HostCopies
from stratagem_capsule.spool import Spool

if TYPE_CHECKING:
    from stratagem_capsule.extension import Capsule

FIRST = -1000
"""Order of what comes before all other callbacks: they may change a batch or draw random numbers."""


class Capsules(Callback):
    """Keep what steps need to run again: `--use capsule` brings it, and has to be in use.

    Batches and random number generators since the last checkpoint are written into the run's folder as it trains.
    When a step raises or its loss isn't finite, they stay there, with the checkpoint. Otherwise the next checkpoint
    replaces them.

    Args:
        steps: optimizer steps, from 1, that are kept in any case. A checkpoint is written before each.
        max_gib: of batches per rank since the last checkpoint; beyond it, no step is kept until the next one.

    Raises:
        ConfigError: steps that aren't numbers from 1, or no positive limit.
    """

    order = FIRST
    is_left_out_of_fast_dev_run = True

    def __init__(self, steps: Sequence[int] = (), max_gib: float = 8.0) -> None:
        steps = [steps] if isinstance(steps, int) else list(steps)
        if not all(isinstance(step, int) and not isinstance(step, bool) and step >= 1 for step in steps):
            raise ConfigError(f"Capsules got steps={steps!r}: give optimizer steps, from 1")
        if max_gib <= 0:
            raise ConfigError(f"Capsules got max_gib={max_gib!r}: give a positive number")
        self.steps, self.max_gib = frozenset(steps), max_gib
        self._keeping: _Keeping | None = None

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begin the first segment. Collective."""
        values = [each.value for each in trainer.runtime.session.run.resolved if each.kind == "extension"]
        from stratagem_capsule.extension import Capsule

        extension = next((value for value in values if isinstance(value, Capsule)), None)
        if extension is None:
            raise ConfigError(
                'Capsules needs the extension of checkpoints: add --use capsule, or plugins=["capsule"]'
            )
        self._keeping = _Keeping(trainer, module, extension, self.steps, int(self.max_gib * 2**30))

    def training_batches(self, trainer: Any, module: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Keep each micro-batch before it is trained on."""
        if self._keeping is None:
            return batches
        return self._keeping.noted(batches)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Keep the loss."""
        if self._keeping is not None:
            self._keeping.end_batch(outputs, batch_idx)

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """Keep the step in which it was raised. Not collective."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.fail(error)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Remove what isn't kept. Collective."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.end()


class _Keeping:
    """What a fit keeps, on one rank. Collective to construct."""

    def __init__(
        self, trainer: Any, module: Any, extension: Capsule, steps: frozenset[int], max_bytes: int
    ) -> None:
        if trainer.run_dir is None:
            raise CapsuleError("capsules are kept in the run's folder, and this run has none")
        self._trainer, self._module, self._steps = trainer, module, steps
        self._state, self._rank, self._is_main = trainer.state, trainer.global_rank, trainer.is_main
        self._run = Path(trainer.run_dir)
        collectives = trainer.collectives
        earlier = attempts_in(self._run) if self._is_main else []
        for attempt in earlier:
            _remove_unkept(attempt)
        number = 1 + max((int(attempt.name) for attempt in earlier), default=0)
        self._attempt = self._run / FOLDER / str(collectives.broadcast(number))
        self._about = partial(
            Segment,
            world_size=trainer.world_size,
            data_ranks=collectives.gather_objects(collectives.data.rank),
            strategy=trainer.runtime.session.run.strategy_name,
            module=type(module).__qualname__,
            torch=str(torch.__version__),
        )
        self._copies = HostCopies(trainer.device)
        self._max_bytes, self._bytes = max_bytes, 0
        self._why_not: str | None = None
        self._found_non_finite = False
        step = self._progress.step
        self._segment = self._folder(step)
        base = self._first_base(extension)
        if self._is_main:
            write_segment(self._segment, self._about(step=step, base=base))
        self._spool = Spool(self._segment / f"rank-{self._rank}")
        self._extension = extension
        extension.observer = self

    # As it trains -----------------------------------------------------------------------------------

    def noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield micro-batches, each once it is kept."""
        is_first = True
        while True:
            if is_first and self._progress.step + 1 in self._steps:
                self._keep_chosen()
            try:
                index, (batch, divisor, is_last) = next(batches)
            except StopIteration:
                return
            if self._why_not is None:
                self._keep(index, batch, divisor, is_last, is_first)
            is_first = is_last
            yield index, (batch, divisor, is_last)

    def end_batch(self, outputs: Any, index: int) -> None:
        """Keep the loss of a micro-batch, and look whether one wasn't finite."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        if self._why_not is None and isinstance(loss, torch.Tensor) and loss.numel() == 1:
            value = self._copies.of(loss.detach())
            self._spool.put(lambda: {"loss_of": index, "loss": float(value())})
        if self._state.metrics.losses.found is not None:
            self._note_non_finite()

    def _keep(self, index: int, batch: Any, divisor: float, is_last: bool, is_first: bool) -> None:
        progress, device = self._progress, self._trainer.device
        waits: list[Any] = []

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            self._bytes += tensor.nbytes
            copy = self._copies.of(tensor)
            waits.append(copy)
            return copy.tensor

        try:
            kept = encoded(batch, copied)
        except CapsuleError as error:
            self._stop(str(error))
            return
        if self._bytes > self._max_bytes:
            self._stop(
                f"the batches since the last checkpoint take more than {self._max_bytes / 2**30:g} GiB on a rank: "
                "save checkpoints more often, or raise max_gib of Capsules"
            )
            return
        rng = capture_rng(device)
        groups = [_plain_settings(each) for each in self._state.prepared.optimizers] if is_first else None
        content = {
            "step": progress.step + 1,
            "epoch": progress.epoch,
            "index": index,
            "divisor": divisor,
            "is_last": is_last,
            "groups": groups,
            "batch": kept,
        }

        def record() -> dict[str, Any]:
            for wait in waits:
                wait()
            return {**content, "rng": _as_tensors(rng)}

        self._spool.put(record)

    def _stop(self, why: str) -> None:
        """Keep no further step of this segment."""
        self._why_not = why
        self._spool.flush()
        shutil.rmtree(self._segment / f"rank-{self._rank}", ignore_errors=True)
        warnings.warn(
            f"no step is kept for a replay until the next checkpoint: {why}", UserWarning, stacklevel=2
        )

    # Checkpoints ------------------------------------------------------------------------------------

    def saving(self, step: int) -> None:
        """Begin a new segment: what follows starts from the checkpoint that is about to be written."""
        if self._state.metrics.losses.found is not None:
            self._note_non_finite()
        self._spool.flush()
        if step == step_of(self._segment):
            return
        self._segment = self._folder(step)
        self._bytes, self._why_not = 0, None
        if self._is_main:
            write_segment(self._segment, self._about(step=step))
        self._spool.move_on(self._segment / f"rank-{self._rank}")

    def saved(self, path: str, step: int) -> None:
        """Let the segment start from the checkpoint, and remove those before it that aren't kept."""
        if not self._is_main or "://" in path:
            return
        segment = self._folder(step)
        own = link_checkpoint(Path(path), segment / "base")
        write_segment(segment, self._about(step=step, base=Base("checkpoint", str(own))))
        _remove_unkept(self._attempt, before=step)

    def _keep_chosen(self) -> None:
        """Write a checkpoint for a chosen step, and say that it is kept. Collective."""
        step = self._progress.step
        self._trainer.save_checkpoint(str(self._folder(step) / "base"))
        if self._is_main:
            self._note(Event(step + 1, "chosen", self._rank))

    def _first_base(self, extension: Capsule) -> Base | None:
        """What this fit began with."""
        step, opened = self._progress.step, extension.opened
        if opened is None or step != opened[1]:
            return Base("start", checksums=checksums(self._state.prepared)) if step == 0 else None
        path = opened[0]
        if "://" in path:
            return None
        return Base(
            "checkpoint", str(link_checkpoint(Path(path), self._segment / "base") if self._is_main else path)
        )

    # Events -----------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Keep the step that raised, and close; not collective."""
        self._extension.observer = None
        if self._state.running == "train" and isinstance(error, Exception):
            found = self._state.metrics.losses.look()
            if found is not None:
                self._note_non_finite()
            else:
                text = f"{type(error).__name__}: {error}"
                self._note(Event(self._progress.step + 1, "raised", self._rank, text))
        self._spool.close()

    def end(self) -> None:
        """Close, and remove what isn't kept. Collective."""
        self._extension.observer = None
        if self._state.metrics.losses.look() is not None:
            self._note_non_finite()
        elif not self._found_non_finite and (name := first_non_finite(self._module.named_parameters())):
            self._note(
                Event(self._progress.step, "non-finite", self._rank, f"the parameter {name} isn't finite")
            )
        self._spool.close()
        self._trainer.runtime.barrier()
        if self._is_main:
            _remove_unkept(self._attempt)

    def _note_non_finite(self) -> None:
        if self._found_non_finite:
            return
        found, self._found_non_finite = self._state.metrics.losses.found, True
        self._note(Event(found.step, "non-finite", self._rank, f"{found.name} is {found.value}"))

    def _note(self, event: Event) -> None:
        if self._why_not is not None:
            _say(f"step {event.step} can't be replayed: {self._why_not}")
            return
        holding = [each for each in segments_in(self._attempt) if step_of(each) < event.step]
        if not holding:
            return
        self._spool.flush()
        if self._spool.failure is not None:
            _say(
                f"step {event.step} can't be replayed: what it needs can't be written: {self._spool.failure}"
            )
            return
        write_event(holding[-1], Event(event.step, event.reason, event.rank, event.text, time.time()))
        if event.reason != "chosen":
            what = "ended with an error" if event.reason == "raised" else "isn't finite"
            run = os.path.relpath(self._run)
            _say(f"step {event.step} {what} on rank {event.rank}: stratagem replay {run} --step {event.step}")

    # Where ------------------------------------------------------------------------------------------

    @property
    def _progress(self) -> Any:
        return self._state.progress

    def _folder(self, step: int) -> Path:
        return self._attempt / f"step-{step}"


def _remove_unkept(attempt: Path, before: int | None = None) -> None:
    """Remove segments of which nothing is kept; all of them, or those before a step."""
    kept = False
    for folder in segments_in(attempt):
        if read_events(folder):
            kept = True
        elif before is None or step_of(folder) < before:
            # What makes it a segment goes first.
            (folder / "segment.json").unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
    if before is None and not kept:
        for folder in (attempt, attempt.parent):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _plain_settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of each parameter group, as schedules and callbacks have left them."""
    kinds = (bool, int, float, str, tuple, type(None))
    return [
        {key: value for key, value in group.items() if key != "params" and isinstance(value, kinds)}
        for group in optimizer.param_groups
    ]


def _as_tensors(rng: dict[str, Any]) -> dict[str, Any]:
    """The states of generators without numpy's arrays, which `weights_only` doesn't load."""
    name, keys, *rest = rng["numpy"]
    return {**rng, "numpy": [name, torch.from_numpy(keys.copy()), *rest]}


def _say(line: str) -> None:
    print(f"  {'capsule':<12}{line}", file=sys.stderr, flush=True)
