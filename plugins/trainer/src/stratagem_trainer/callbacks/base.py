"""`Callback`: code that a trainer calls while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class Callback:
    """Base class of callbacks. Its methods are called on every rank. Override only those that you need.

    Hooks get the `Trainer` and the `Module` first. These have the type Any, so that an override may name the class of
    its own module. Only overridden methods are called. Others cost nothing.
    """

    order: int = 0
    """Callbacks with a higher order are called after those with a lower one."""

    judges_epochs: bool = False
    """Whether `on_train_epoch_end` is called after those of the module and other callbacks, to read what they log."""

    is_restored_in_evaluations: bool = True
    """Whether an evaluation of a checkpoint loads its state; False if only a fit needs it."""

    is_left_out_of_fast_dev_run: bool = False
    """Whether `Trainer(fast_dev_run=True)` leaves it out, as callbacks that write files or end a fit should be."""

    needs: tuple[str, ...] = ()
    """Names from `stratagem.sdk.catalogue.FEATURES` that the strategy must support. Otherwise a fit is refused before
    it is launched."""

    def before_launch(self, trainer: Any, module: Any, dataloader: Any, stage: str) -> None:
        """Called in the launching process before workers are started. Use it to find good settings or refuse bad
        ones.

        Args:
            trainer: the `Trainer`.
            module: what was passed to the trainer: a `Module`, or a function that makes one.
            dataloader: the first loader that was passed; None if none was.
            stage: "fit", "validate", "test" or "predict".
        """

    def after_launch(self, trainer: Any, module: Any, stage: str) -> None:
        """Called in the launching process after a stage without an error. Errors that it raises reach the caller.

        Workers have ended. Their metrics, weights and callbacks' states have been copied back; on several nodes, only
        on the node of rank 0.

        Args:
            trainer: the `Trainer`.
            module: what was passed to the trainer: a `Module`, or a function that makes one.
            stage: "fit", "validate", "test" or "predict".
        """

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Called on every rank, before `configure_model`, with the name of the stage."""

    def on_start(self, trainer: Any, module: Any, stage: str) -> None:
        """Called before the first batch of any stage."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Called before a fit's first batch."""

    def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
        """Called before the sanity check, the validation of a few batches before a fit."""

    def on_sanity_check_end(self, trainer: Any, module: Any) -> None:
        """Called after the sanity check, which also calls the hooks of a validation."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Called before the first epoch."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Called before the first batch of an epoch."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> Any:
        """Called before a micro-batch's forward. Return -1 to end the epoch."""

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """Called after `training_step`, before backward."""

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        """Called after backward. Under some strategies, gradients aren't reduced yet."""

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Called before an optimizer's gradients are clipped."""

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Called after the optimizer's step, before its gradients are dropped."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after backward, and after the step if the batch ends a window."""

    def on_evaluation_start(self, trainer: Any, module: Any, stage: str) -> None:
        """Called before the first batch of any evaluation."""

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Called before a validation."""

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        """Called before the first batch of a validation."""

    def on_validation_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Called before the step of a batch. The batch is on the device."""

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after the step of a batch."""

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """Called after the last batch of a validation. You can log values of the whole validation here."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Called after a validation. Its metrics have been reduced over ranks."""

    def on_test_start(self, trainer: Any, module: Any) -> None:
        """Called before a test."""

    def on_test_epoch_start(self, trainer: Any, module: Any) -> None:
        """Called before the first batch of a test."""

    def on_test_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Called before the step of a batch. The batch is on the device."""

    def on_test_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after the step of a batch."""

    def on_test_epoch_end(self, trainer: Any, module: Any) -> None:
        """Called after the last batch of a test. You can log values of the whole test here."""

    def on_test_end(self, trainer: Any, module: Any) -> None:
        """Called after a test. Its metrics have been reduced over ranks."""

    def on_predict_start(self, trainer: Any, module: Any) -> None:
        """Called before a prediction."""

    def on_predict_epoch_start(self, trainer: Any, module: Any) -> None:
        """Called before the first batch of a prediction."""

    def on_predict_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Called before the step of a batch. The batch is on the device."""

    def on_predict_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after the step of a batch."""

    def on_predict_epoch_end(self, trainer: Any, module: Any) -> None:
        """Called after the last batch of a prediction."""

    def on_predict_end(self, trainer: Any, module: Any) -> None:
        """Called after a prediction."""

    def on_evaluation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, stage: str
    ) -> None:
        """Called after a batch of any evaluation."""

    def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
        """Called after any evaluation."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Called after an epoch's last batch and its validation."""

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Called after the last epoch."""

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Called after a fit."""

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        """Called after the last batch of any stage."""

    def on_save_checkpoint(self, trainer: Any, module: Any, state: dict[str, Any]) -> None:
        """Called before a checkpoint is written. What rank 0 adds to `state` is saved."""

    def on_load_checkpoint(self, trainer: Any, module: Any, state: dict[str, Any]) -> None:
        """Called when a checkpoint is loaded. `state` has what `on_save_checkpoint` added."""

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """Called when an error ends a stage. Don't call collectives: ranks may be at different points."""

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Called at the end of a stage, unless an error ended it."""

    def state_dict(self) -> dict[str, Any]:
        """Return this callback's state, for checkpoints and for the launching process."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    # Batches ----------------------------------------------------------------------------------------

    def training_batches(self, trainer: Any, module: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator over the micro-batches of an epoch, which may observe or replace those in `batches`.

        Args:
            trainer: the `Trainer`.
            module: the `Module`.
            batches: yields each micro-batch's index in the epoch, and a tuple: the batch on the device, the divisor
                of its loss, and whether it is the last one of its optimizer step. If you write a generator, the code
                after a `yield` runs when the loop asks for the next micro-batch.
        """
        return batches

    # Tensors in checkpoints ---------------------------------------------------------------------------

    def save_tensors(self, tensors: dict[str, Any]) -> None:
        """Add this callback's tensors to a checkpoint, or replace tensors of the model there. Called on every rank.

        Args:
            tensors: name → tensor, or DTensor if it is sharded. The model's names begin with "model/". Begin yours
                with `tensor_prefix`.
        """

    def before_restore(self, module: Any, optimizers: Sequence[Any], state: dict[str, Any]) -> None:
        """Called before optimizers are restored from a checkpoint. Make their groups as they were when it was
        written.

        Args:
            module: the user's module, prepared.
            optimizers: the run's optimizers.
            state: what `state_dict` returned when the checkpoint was written.
        """

    def load_tensors(self, prepared: Any, reader: Any) -> None:
        """Restore what `save_tensors` added. Called on every rank, after `load_state_dict`.

        Args:
            prepared: the run's `stratagem.Prepared`.
            reader: the `stratagem.CheckpointReader`.
        """

    @property
    def tensor_prefix(self) -> str:
        """Prefix of the names of this callback's tensors in checkpoints."""
        return f"callback/{self.state_key}/"

    @property
    def state_key(self) -> str:
        """Key of this callback's state in a checkpoint. Override it to use several callbacks of one class."""
        return type(self).__qualname__
