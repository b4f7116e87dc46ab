"""`ModuleHooks`: the methods of a module that a trainer calls at named moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from stratagem_trainer.data.transfer_hooks import TransferHooks


class ModuleHooks(TransferHooks):
    """Methods that do nothing, or what the loop does, until a module overrides them.

    docs/guides/module-hooks.md has all, in order.

    A method that isn't overridden costs nothing: only those that are get called, on every rank.
    """

    if TYPE_CHECKING:
        clip_gradients: Callable[..., None]

    def prepare_data(self) -> None:
        """Once per node, before `setup`: downloads; nothing may be kept in the module."""

    def setup(self, stage: str) -> None:
        """Called on every rank, before `configure_model`; `stage` is "fit", "validate", "test" or "predict"."""

    def on_fit_start(self) -> None:
        """Before a fit's first batch."""

    def on_train_start(self) -> None:
        """Before the first epoch."""

    def on_train_epoch_start(self) -> None:
        """Before the first batch of an epoch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        """Before a micro-batch's forward; -1 ends the epoch."""

    def on_before_backward(self, loss: torch.Tensor) -> None:
        """After `training_step`, before backward."""

    def on_after_backward(self) -> None:
        """After backward; under some strategies gradients aren't reduced yet."""

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Step an optimizer: override it for a warm-up, or to leave out steps.

        Args:
            epoch: the current one.
            batch_idx: of the last micro-batch of the step.
            optimizer: its `step` unscales gradients, calls `on_before_optimizer_step`, clips and steps, as without
                this override. Where it isn't called, gradients are dropped and `global_step` stays.
            optimizer_closure: for `optimizer.step`; returns the loss. Gradients are there before this method is
                called, unless the optimizer evaluates the loss itself (LBFGS).
        """
        optimizer.step(closure=optimizer_closure)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Before an optimizer's gradients are clipped."""

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None, gradient_clip_algorithm: str | None
    ) -> None:
        """Limit gradients, which are reduced over ranks and unscaled; the values are the trainer's."""
        self.clip_gradients(
            optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm=gradient_clip_algorithm
        )

    def on_before_zero_grad(self, optimizer: Optimizer) -> None:
        """After its step, before its gradients are dropped."""

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Drop an optimizer's gradients; `optimizer.zero_grad(set_to_none=False)` fills them with zeros."""
        optimizer.zero_grad()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a scheduler that is due: override it for one whose `step` takes something else.

        Args:
            scheduler: as `configure_optimizers` returned it.
            metric: the latest value of its `monitor`, equal on all ranks; None where it takes no metric.
        """
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After backward and, at a window's end, the step."""

    def on_validation_start(self) -> None:
        """Before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Before the first batch of a validation."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Before the step of a batch, which is on the device."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After the step of a batch."""

    def on_validation_epoch_end(self) -> None:
        """After the last batch of a validation; what is logged counts for it."""

    def on_validation_end(self) -> None:
        """After a validation; its metrics are reduced over ranks by now."""

    def on_test_start(self) -> None:
        """Before a test."""

    def on_test_epoch_start(self) -> None:
        """Before the first batch of a test."""

    def on_test_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Before the step of a batch, which is on the device."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After the step of a batch."""

    def on_test_epoch_end(self) -> None:
        """After the last batch of a test; what is logged counts for it."""

    def on_test_end(self) -> None:
        """After a test; its metrics are reduced over ranks by now."""

    def on_predict_start(self) -> None:
        """Before a prediction."""

    def on_predict_epoch_start(self) -> None:
        """Before the first batch of a prediction."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Before the step of a batch, which is on the device."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After the step of a batch."""

    def on_predict_epoch_end(self) -> None:
        """After the last batch of a prediction; what is logged counts for it."""

    def on_predict_end(self) -> None:
        """After a prediction; its metrics are reduced over ranks by now."""

    def on_train_epoch_end(self) -> None:
        """After an epoch's last batch and its validation."""

    def on_train_end(self) -> None:
        """After the last epoch."""

    def on_fit_end(self) -> None:
        """After a fit."""

    def on_save_checkpoint(self, state: dict[str, Any]) -> None:
        """Before a checkpoint is written; rank 0's additions are kept."""

    def on_load_checkpoint(self, state: dict[str, Any]) -> None:
        """When one is loaded, with what was added."""

    def teardown(self, stage: str) -> None:
        """At the end of a stage that wasn't ended by an error."""
