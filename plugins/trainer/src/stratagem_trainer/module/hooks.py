"""`ModuleHooks`: the methods of a module that a trainer calls while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from stratagem_trainer.data.transfer_hooks import TransferHooks


class ModuleHooks(TransferHooks):
    """The hooks of a module. By default, they do nothing, or what the loop does without them.

    docs/guides/module-hooks.md lists all, in order.

    Only overridden hooks are called, on every rank. Others cost nothing.
    """

    if TYPE_CHECKING:
        clip_gradients: Callable[..., None]

    def prepare_data(self) -> None:
        """Download data. Called once per node, before `setup`. Don't keep anything in the module here."""

    def setup(self, stage: str) -> None:
        """Set up the module. Called on every rank before `configure_model`, with the name of the stage."""

    def on_fit_start(self) -> None:
        """Called before a fit's first batch."""

    def on_train_start(self) -> None:
        """Called before the first epoch."""

    def on_train_epoch_start(self) -> None:
        """Called before the first batch of an epoch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        """Called before a micro-batch's forward. Return -1 to end the epoch."""

    def on_before_backward(self, loss: torch.Tensor) -> None:
        """Called after `training_step`, before backward."""

    def on_after_backward(self) -> None:
        """Called after backward. Under some strategies, gradients aren't reduced yet."""

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Step an optimizer. Override it for a warm-up, or to skip steps.

        Args:
            epoch: index of the current epoch.
            batch_idx: index of the step's last micro-batch.
            optimizer: its `step` unscales gradients, calls `on_before_optimizer_step`, clips and steps, as without
                this override. If you don't call it, gradients are dropped and `global_step` doesn't increase.
            optimizer_closure: pass it to `optimizer.step`. It returns the loss. Gradients are computed before this
                method is called, except for optimizers such as LBFGS that call the closure.
        """
        optimizer.step(closure=optimizer_closure)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Called before an optimizer's gradients are clipped."""

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None, gradient_clip_algorithm: str | None
    ) -> None:
        """Clip gradients with the trainer's values. They are reduced over ranks and unscaled before."""
        self.clip_gradients(
            optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm=gradient_clip_algorithm
        )

    def on_before_zero_grad(self, optimizer: Optimizer) -> None:
        """Called after the optimizer's step, before its gradients are dropped."""

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Drop an optimizer's gradients. `optimizer.zero_grad(set_to_none=False)` fills them with zeros."""
        optimizer.zero_grad()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a scheduler that is due. Override it if the scheduler's `step` takes other arguments.

        Args:
            scheduler: the object that `configure_optimizers` returned.
            metric: the latest value of its `monitor`, equal on all ranks; None if it takes no metric.
        """
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after backward, and after the step if the batch ends a window."""

    def on_validation_start(self) -> None:
        """Called before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch of a validation."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Called before the step of a batch. The batch is on the device."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after the step of a batch."""

    def on_validation_epoch_end(self) -> None:
        """Called after the last batch of a validation. You can log values of the whole validation here."""

    def on_validation_end(self) -> None:
        """Called after a validation. Its metrics have been reduced over ranks."""

    def on_test_start(self) -> None:
        """Called before a test."""

    def on_test_epoch_start(self) -> None:
        """Called before the first batch of a test."""

    def on_test_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Called before the step of a batch. The batch is on the device."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after the step of a batch."""

    def on_test_epoch_end(self) -> None:
        """Called after the last batch of a test. You can log values of the whole test here."""

    def on_test_end(self) -> None:
        """Called after a test. Its metrics have been reduced over ranks."""

    def on_predict_start(self) -> None:
        """Called before a prediction."""

    def on_predict_epoch_start(self) -> None:
        """Called before the first batch of a prediction."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Called before the step of a batch. The batch is on the device."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after the step of a batch."""

    def on_predict_epoch_end(self) -> None:
        """Called after the last batch of a prediction."""

    def on_predict_end(self) -> None:
        """Called after a prediction."""

    def on_train_epoch_end(self) -> None:
        """Called after an epoch's last batch and its validation."""

    def on_train_end(self) -> None:
        """Called after the last epoch."""

    def on_fit_end(self) -> None:
        """Called after a fit."""

    def on_save_checkpoint(self, state: dict[str, Any]) -> None:
        """Called before a checkpoint is written. What rank 0 adds to `state` is saved."""

    def on_load_checkpoint(self, state: dict[str, Any]) -> None:
        """Called when a checkpoint is loaded. `state` has what `on_save_checkpoint` added."""

    def teardown(self, stage: str) -> None:
        """Clean up. Called at the end of a stage, unless an error ended it."""
