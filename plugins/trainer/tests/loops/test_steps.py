"""What follows an optimizer step: the comparison of ranks, checks, schedulers and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import train
from small import Line

import stratagem
from stratagem.errors import WorkerError


class Drifts(Line):
    """Rank 1 leaves the others after its third step."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_rank == 1 and self.global_step == 3:
            with torch.no_grad():
                self.layer.weight.add_(1.0)

    def val_dataloader(self) -> Any:
        return None


def test_ranks_are_compared_after_steps(tmp_path: Path) -> None:
    trainer = stratagem.Trainer(
        strategy="ddp",
        strategy_options={"start_method": "fork"},
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        run_dir=tmp_path / "run",
    )
    with pytest.raises(WorkerError, match="after step 4"):
        trainer.fit(Drifts())


def test_a_modules_hooks_get_epoch_and_batch(tmp_path: Path) -> None:
    given: list[Any] = []

    class Hooked(Line):
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
        ) -> None:
            given.append(("step", epoch, batch_idx, self.global_step))
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

        def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
            given.append(("zero", epoch, batch_idx, self.global_step))
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    train(Hooked(), tmp_path, limit_train_batches=3, accumulate_grad_batches=2)
    assert given == [
        (which, step // 2, batch, step)
        for step, batch in enumerate((1, 2, 1, 2))
        for which in ("step", "zero")
    ]


def test_a_checkpoint_of_a_batchs_end_counts_its_step(tmp_path: Path) -> None:
    """`on_before_zero_grad` still reads the numbers before the step, `on_train_batch_end` those after it."""
    seen: list[Any] = []

    class Numbers(Line):
        def numbers(self) -> Any:
            progress = self.trainer.current_stage.live.progress
            return progress.step, progress.batch

        def on_before_zero_grad(self, optimizer: Any) -> None:
            seen.append(self.numbers())

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(self.numbers())

    train(Numbers(), tmp_path, max_epochs=1, limit_train_batches=3, accumulate_grad_batches=2)
    assert seen == [(0, 0), (0, 0), (1, 2), (1, 2), (2, 3)]
