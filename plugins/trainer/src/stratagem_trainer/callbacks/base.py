"""`Callback`: code that runs at named moments of a trainer's loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class Callback:
    """Base of all callbacks. Every method is called on every rank; override only what you need.

    Each gets the `Trainer` and the `Module` that it runs first; they are typed as anything, so that an override
    may name its own module's class. A method that isn't overridden costs nothing: only those that are get called.
    """

    order: int = 0
    """Callbacks with a higher order are called after those with a lower one."""

    judges_epochs: bool = False
    """Whether its `on_train_epoch_end` reads what the module and other callbacks log in theirs."""

    is_restored_in_evaluations: bool = True
    """Whether an evaluation of a checkpoint loads its state; False if only a fit needs it."""

    is_left_out_of_fast_dev_run: bool = False
    """Whether `Trainer(fast_dev_run=True)` leaves it out, as it does callbacks that write files or end a fit."""

    needs: tuple[str, ...] = ()
    """Features that the strategy must have, by names from `stratagem.sdk.catalogue.FEATURES`; without them, a fit is
    refused before anything is launched."""

    def before_launch(self, trainer: Any, module: Any, dataloader: Any, stage: str) -> None:
        """In the launching process, before workers are started: look for good settings, or refuse bad ones.

        Args:
            trainer: the `Trainer`.
            module: as the trainer got it: a `Module`, or what makes one.
            dataloader: the first that it got; None where the module has its own.
            stage: "fit", "validate", "test" or "predict".
        """

    def after_launch(self, trainer: Any, module: Any, stage: str) -> None:
        """In the launching process, after a stage that ended without an error; the caller gets what is raised here.

        Workers have ended, and their metrics, weights and callbacks' states are back: on several nodes, only where
        rank 0 ran.

        Args:
            trainer: the `Trainer`.
            module: as the trainer got it: a `Module`, or what makes one.
            stage: "fit", "validate", "test" or "predict".
        """

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Called on every rank, before `configure_model`; `stage` is "fit", "validate", "test" or "predict"."""

    def on_start(self, trainer: Any, module: Any, stage: str) -> None:
        """Before the first batch of any stage."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Before a fit's first batch."""

    def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
        """Before the sanity check, the validation of a few batches before a fit."""

    def on_sanity_check_end(self, trainer: Any, module: Any) -> None:
        """After the sanity check, which has called the hooks of a validation."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Before the first epoch."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Before the first batch of an epoch."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> Any:
        """Before a micro-batch's forward; -1 ends the epoch."""

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """After `training_step`, before backward."""

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        """After backward; under some strategies gradients aren't reduced yet."""

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Before an optimizer's gradients are clipped."""

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """After its step, before its gradients are dropped."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After backward and, at a window's end, the step."""

    def on_evaluation_start(self, trainer: Any, module: Any, stage: str) -> None:
        """Before the first batch of any evaluation."""

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Before a validation."""

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        """Before the first batch of a validation."""

    def on_validation_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Before the step of a batch, which is on the device."""

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After the step of a batch."""

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """After the last batch of a validation; what is logged counts for it."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """After a validation; its metrics are reduced over ranks by now."""

    def on_test_start(self, trainer: Any, module: Any) -> None:
        """Before a test."""

    def on_test_epoch_start(self, trainer: Any, module: Any) -> None:
        """Before the first batch of a test."""

    def on_test_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Before the step of a batch, which is on the device."""

    def on_test_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After the step of a batch."""

    def on_test_epoch_end(self, trainer: Any, module: Any) -> None:
        """After the last batch of a test; what is logged counts for it."""

    def on_test_end(self, trainer: Any, module: Any) -> None:
        """After a test; its metrics are reduced over ranks by now."""

    def on_predict_start(self, trainer: Any, module: Any) -> None:
        """Before a prediction."""

    def on_predict_epoch_start(self, trainer: Any, module: Any) -> None:
        """Before the first batch of a prediction."""

    def on_predict_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Before the step of a batch, which is on the device."""

    def on_predict_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After the step of a batch."""

    def on_predict_epoch_end(self, trainer: Any, module: Any) -> None:
        """After the last batch of a prediction; what is logged counts for it."""

    def on_predict_end(self, trainer: Any, module: Any) -> None:
        """After a prediction; its metrics are reduced over ranks by now."""

    def on_evaluation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, stage: str
    ) -> None:
        """After a batch of any evaluation."""

    def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
        """After any evaluation."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """After an epoch's last batch and its validation."""

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """After the last epoch."""

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """After a fit."""

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        """After the last batch of any stage."""

    def on_save_checkpoint(self, trainer: Any, module: Any, state: dict[str, Any]) -> None:
        """Before a checkpoint is written; rank 0's additions are kept."""

    def on_load_checkpoint(self, trainer: Any, module: Any, state: dict[str, Any]) -> None:
        """When one is loaded, with what was added."""

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """When a stage ends by an error; ranks may be apart: no collectives."""

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """At the end of a stage that wasn't ended by an error."""

    def state_dict(self) -> dict[str, Any]:
        """This callback's own state, for checkpoints and for the launching process."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    # Batches ----------------------------------------------------------------------------------------

    def training_batches(self, trainer: Any, module: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the micro-batches of an epoch, as a generator that notes or replaces those in `batches`.

        Args:
            trainer: the `Trainer`.
            module: the `Module`.
            batches: of each micro-batch its index within the epoch, and a tuple: the batch on the device, by what its
                loss is divided, and whether it is the last one of its optimizer step. What comes after a yield runs
                when the loop asks for the next one.
        """
        return batches

    # Tensors in checkpoints ---------------------------------------------------------------------------

    def save_tensors(self, tensors: dict[str, Any]) -> None:
        """Add this callback's tensors to a checkpoint's, or change which of the model it has. On every rank.

        Args:
            tensors: "model/…" → tensor, or DTensor where it is in shards; your own names begin with
                `tensor_prefix`.
        """

    def before_restore(self, module: Any, optimizers: Sequence[Any], state: dict[str, Any]) -> None:
        """Before a checkpoint is read into the optimizers: bring their groups to what they were.

        Args:
            module: the user's, prepared.
            optimizers: of the run.
            state: what `state_dict` returned when the checkpoint was written.
        """

    def load_tensors(self, prepared: Any, reader: Any) -> None:
        """Restore what `save_tensors` added, after the model, the optimizers and `load_state_dict`. On every rank.

        Args:
            prepared: the run's `stratagem.Prepared`.
            reader: the `stratagem.CheckpointReader`.
        """

    @property
    def tensor_prefix(self) -> str:
        """What names of this callback's tensors in checkpoints begin with."""
        return f"callback/{self.state_key}/"

    @property
    def state_key(self) -> str:
        """The key of this callback's state in a checkpoint; override it to use several of one class."""
        return type(self).__qualname__
