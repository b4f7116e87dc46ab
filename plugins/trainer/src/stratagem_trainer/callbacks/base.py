"""`Callback`: code that runs at named moments of a trainer's loop."""

from __future__ import annotations

from typing import Any


class Callback:
    """Base of all callbacks. Every method is called on every rank; override only what you need.

    Each gets the `Trainer` and the `Module` that it runs first; they are typed as anything, so that an override
    may name its own module's class. A method that isn't overridden costs nothing: only those that are get called.
    """

    order: int = 0
    """Callbacks with a higher order are called after those with a lower one."""

    def on_start(self, trainer: Any, module: Any, stage: str) -> None:
        """Before the first batch of a stage: "fit", "validate", "test" or "predict"."""

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        """After the last batch of a stage that wasn't ended by an exception."""

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """When the stage is ended by `error`; ranks may be apart, so no collectives here."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Before the first batch of an epoch."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """After an epoch's last batch and its validation; `trainer.callback_metrics` is up to date."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Before a micro-batch's forward; the batch is on the device."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a micro-batch's backward and, where a window ends, the optimizer step."""

    def on_evaluation_start(self, trainer: Any, module: Any, stage: str) -> None:
        """Before the first batch of an evaluation, also of the validation within "fit"."""

    def on_evaluation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, stage: str
    ) -> None:
        """After a batch of "validate", "test" or "predict"."""

    def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
        """After an evaluation's last batch; its metrics are reduced over ranks by now."""

    def on_save_checkpoint(self, trainer: Any, module: Any, state: dict[str, Any]) -> None:
        """Add to the state of a checkpoint that is about to be written. Only rank 0's is."""

    def on_load_checkpoint(self, trainer: Any, module: Any, state: dict[str, Any]) -> None:
        """Read back what `on_save_checkpoint` added."""

    def state_dict(self) -> dict[str, Any]:
        """This callback's own state, for checkpoints and for the launching process."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` returned."""

    @property
    def state_key(self) -> str:
        """What tells this callback's state from others' in a checkpoint; override for several of a class."""
        return type(self).__qualname__


HOOKS: tuple[str, ...] = tuple(name for name in vars(Callback) if name.startswith("on_"))
"""Names of all moments."""
