"""`replay`: runs a kept step again, by a trainer."""

from __future__ import annotations

import os
import pdb
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from stratagem_trainer.callbacks import Callback

from stratagem.errors import UsageError
from stratagem.sdk.loops import restore_rng
from stratagem_capsule.base import checksums
from stratagem_capsule.batches import decoded
from stratagem_capsule.callback import FIRST
from stratagem_capsule.errors import CapsuleError
from stratagem_capsule.opening import KeptStep, open_step
from stratagem_capsule.report import RankReport, Report, read_reports
from stratagem_capsule.watching import StepWatch

SAME = "same-run"
"""File by which rank 0 says that the replay has the strategy and the processes of the run."""


def replay(
    trainer: Any,
    model: Any,
    run: str | os.PathLike[str],
    step: int | None = None,
    *,
    datamodule: Any = None,
    use_pdb: bool = False,
) -> Report:
    """Run a kept step of a run again, from the checkpoint before it.

    Args:
        trainer: a `Trainer`, made as that of the run, or with another strategy on one process. Callbacks that write
            files or end a fit are left out.
        model: as `Trainer.fit` takes it.
        run: the run's folder.
        step: the optimizer step, from 1; None takes the only one that was kept for a reason.
        datamodule: as `Trainer.fit` takes it. Its loaders are made and not read.
        use_pdb: open the debugger where the step raises or isn't finite, or else where it begins; on one process.

    Returns:
        What was found; an error that the step raises is in there.

    Raises:
        CapsuleError: the step isn't kept, or what it needs is missing, damaged, or of another model.
    """
    kept = open_step(run, step)
    with tempfile.TemporaryDirectory() as scratch:
        callback = Replay(kept, scratch, use_pdb=use_pdb)
        others = [each for each in trainer.callbacks if not each.is_left_out_of_fast_dev_run]
        trainer.callbacks = [*others, callback]
        is_checkpoint = kept.base.kind == "checkpoint"
        try:
            trainer.fit(model, datamodule=datamodule, ckpt_path=kept.base.path if is_checkpoint else None)
        except Exception as error:
            # The step may raise as it did in the run: then a rank has reported it.
            if not _is_reported(Path(scratch)):
                if isinstance(error, UsageError):
                    error.exit_code = UsageError.exit_code  # the fit was begun, but nothing is lost
                raise
        began = kept.segment.step
        start = f"the checkpoint of step {began}" if is_checkpoint else "the beginning of the run"
        is_same_run = (Path(scratch) / SAME).exists()
        return read_reports(Path(scratch), kept, is_same_run=is_same_run, start=start)


class Replay(Callback):
    """Gives a fit the batches and random numbers that a run kept, and ends it after a step.

    Args:
        kept: the step.
        folder: where ranks write their reports.
        use_pdb: open the debugger.
    """

    order = FIRST

    def __init__(self, kept: KeptStep, folder: str, *, use_pdb: bool) -> None:
        self.kept, self.folder, self.use_pdb = kept, folder, use_pdb
        self._records: Iterator[dict[str, Any]] = iter(())
        self._next: dict[str, Any] | None = None
        self._current: dict[str, Any] | None = None
        self._watch: StepWatch | None = None
        self._report = RankReport(0)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Check that this run can replay the step."""
        kept, data = self.kept, trainer.collectives.data
        self._report = RankReport(trainer.global_rank)
        if type(module).__qualname__ != kept.segment.module:
            raise CapsuleError(
                f"step {kept.step} is of a {kept.segment.module}, and this model is a {type(module).__qualname__}: "
                "give the model of the run"
            )
        if data.world_size not in (1, kept.data_world_size):
            raise CapsuleError(
                f"step {kept.step} has the batches of {kept.data_world_size} data ranks, and this replay has "
                f"{data.world_size}: replay it on as many, or in one process"
            )
        if kept.base.kind == "start":
            _refuse_other_start(kept, checksums(trainer.prepared))
        if data.world_size == kept.data_world_size:
            self._records = kept.records(data.rank)
        else:
            _refuse_synchronized_batch_norm(module, trainer)
            self._records, self._report.has_all_ranks = _of_all_ranks(kept), True
        is_same = (
            kept.segment.strategy == trainer.runtime.session.run.strategy_name
            and kept.segment.world_size == trainer.world_size
        )
        if is_same and trainer.is_main:
            (Path(self.folder) / SAME).touch()
        self._next = next(self._records, None)

    def training_batches(self, trainer: Any, module: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Give the kept micro-batches of an epoch instead of the loader's."""
        while self._next is not None and self._next["epoch"] == trainer.current_epoch:
            record, self._next = self._next, next(self._records, None)
            self._current = record
            batch = decoded(record["batch"], trainer.device)
            for optimizer, groups in zip(trainer.prepared.optimizers, record["groups"] or ()):
                for group, settings in zip(optimizer.param_groups, groups):
                    group.update(settings)
            if record["step"] == self.kept.step and self._watch is None:
                self._watch = StepWatch(module, self._report, stops=self.use_pdb)
                if self.use_pdb and all(event.reason == "chosen" for event in self.kept.events):
                    print(f"step {self.kept.step} begins: `module`, `batch` and `trainer` are here")
                    pdb.set_trace()
            restore_rng(_as_arrays(record["rng"]), trainer.device)
            yield record["index"], (batch, record["divisor"], record["is_last"])
        if self._next is None and not self._report.is_done:
            raise CapsuleError(
                f"step {self.kept.step} raised in the run and doesn't here; its further batches weren't kept"
            )

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Look at the gradients of the step."""
        if self._watch is not None:
            self._watch.look_at_gradients(optimizer)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note the loss, and end the fit after the step."""
        if self._watch is None or self._current is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        self._report.losses.append(
            float(loss) if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None
        )
        if self._current["is_last"] and self._next is None:
            self._report.is_done = True
            trainer.should_stop = True
            # Otherwise an epoch that ends with the step would be ended, too: validated, and its hooks called.
            trainer.state.num_train_batches = None

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """Report an error of the step. Not collective."""
        if self._watch is None:
            return
        self._watch.close()
        if not isinstance(error, CapsuleError):
            self._report.time = time.time()
            self._report.error = f"{type(error).__name__}: {error}"
            self._report.traceback = "".join(traceback.format_exception(error))
        self._report.write(Path(self.folder))
        if self.use_pdb and self._report.error:
            pdb.post_mortem(error.__traceback__)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Report the step."""
        if self._watch is not None:
            self._watch.close()
        self._report.write(Path(self.folder))


def _of_all_ranks(kept: KeptStep) -> Iterator[dict[str, Any]]:
    """Yield the micro-batches of all ranks, one of each in turns, as those of one step.

    A strategy averages over ranks what each averages over its micro-batches: the divisor of each is larger by the
    number of ranks.
    """
    ranks = sorted(set(kept.segment.data_ranks))
    sources = [kept.records(rank) for rank in ranks]
    window: list[list[dict[str, Any]]] = [[] for _ in ranks]
    heads = [next(source, None) for source in sources]
    while any(head is not None for head in heads):
        for position, source in enumerate(sources):
            head, window[position] = heads[position], []
            while head is not None:
                window[position].append(head)
                is_last, head = head["is_last"], next(source, None)
                if is_last:
                    break
            heads[position] = head
        longest = max(map(len, window))
        turns = [own[i] for i in range(longest) for own in window if i < len(own)]
        is_whole = all(own and own[-1]["is_last"] for own in window)
        for number, record in enumerate(turns, 1):
            yield {
                **record,
                "divisor": record["divisor"] * len(ranks),
                "is_last": is_whole and number == len(turns),
                "groups": record["groups"] if number == 1 else None,
            }


def _refuse_other_start(kept: KeptStep, found: dict[str, int]) -> None:
    recorded = kept.base.checksums
    other = [name for name in recorded if name in found and recorded[name] != found[name]]
    if other or not set(recorded) & set(found):
        what = f"{other[0].removeprefix('model/')!r} has other values" if other else "it has other parameters"
        raise CapsuleError(
            f"step {kept.step} starts from the beginning of the run, which can't be made again: {what}; its seed, "
            "code or data have changed, or the model isn't made by the seed alone. Save a checkpoint before the "
            "step, as Capsules(steps=[…]) does"
        )


def _refuse_synchronized_batch_norm(module: torch.nn.Module, trainer: Any) -> None:
    layers = [name for name, each in module.named_modules() if "SyncBatchNorm" in type(each).__name__]
    if layers or trainer.settings.sync_batchnorm:
        raise CapsuleError(
            "the model synchronizes BatchNorm over ranks, which one process can't repeat batch by batch: replay the "
            "step under the strategy of the run"
        )


def _as_arrays(rng: dict[str, Any]) -> dict[str, Any]:
    name, keys, *rest = rng["numpy"]
    return {**rng, "numpy": [name, keys.numpy(), *rest]}


def _is_reported(folder: Path) -> bool:
    return any(folder.glob("rank-*.json"))
