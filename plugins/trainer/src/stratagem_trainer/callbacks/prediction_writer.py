"""`BasePredictionWriter`: pass predictions to a method that writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from stratagem.errors import ConfigError
from stratagem_trainer.callbacks.base import Callback

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class BasePredictionWriter(Callback):
    """Override `write_on_batch_end`, `write_on_epoch_end` or both, to store predictions in your own way.

    Each rank writes its own predictions. All ranks together have each sample once, and indices give the positions of
    samples in the dataset.

    Args:
        write_interval: "batch", "epoch" or "batch_and_epoch": which of the two methods to call.

    Raises:
        ConfigError: the interval is unknown.
    """

    def __init__(self, write_interval: Literal["batch", "epoch", "batch_and_epoch"] = "batch") -> None:
        if write_interval not in ("batch", "epoch", "batch_and_epoch"):
            raise ConfigError(
                f"{type(self).__name__} got write_interval={write_interval!r}; allowed are 'batch', 'epoch' and "
                "'batch_and_epoch'"
            )
        self.write_interval = write_interval
        self._predictions: list[list[Any]] = []
        self._indices: list[list[list[int] | None]] = []
        self._seen: list[int] = []

    def write_on_batch_end(
        self,
        trainer: Any,
        module: Any,
        prediction: Any,
        batch_indices: list[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write what `predict_step` returned for a batch. Called on the rank that predicted it.

        Args:
            trainer: the `Trainer`.
            module: the `Module`.
            prediction: prediction of this batch.
            batch_indices: indices of its samples in the dataset; None if the loader has its own sampler.
            batch: the batch, on the device.
            batch_idx: index of the batch on this rank.
            dataloader_idx: index of the loader.
        """

    def write_on_epoch_end(
        self, trainer: Any, module: Any, predictions: list[Any], batch_indices: list[Any]
    ) -> None:
        """Write all predictions of this rank.

        Args:
            trainer: the `Trainer`.
            module: the `Module`.
            predictions: one per batch; with several loaders, a list for each.
            batch_indices: the indices of each batch's samples, in the same form.
        """

    def on_predict_start(self, trainer: TrainerView, module: Module) -> None:
        self._predictions, self._indices, self._seen = [], [], []

    def on_predict_batch_end(
        self,
        trainer: TrainerView,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        state = trainer.state
        if not state.batch_counts:
            return  # this batch only makes all ranks run the same number of forwards
        while len(self._predictions) <= dataloader_idx:
            self._predictions.append([])
            self._indices.append([])
            self._seen.append(0)
        size = getattr(state.eval_data, "batch_size", None) or 1
        order_of = getattr(state.eval_data, "order", None)
        order = order_of(self._seen[dataloader_idx] + size) if order_of is not None else None
        indices = None if order is None else order[self._seen[dataloader_idx] :]
        self._seen[dataloader_idx] += size
        if self.write_interval != "epoch":
            self.write_on_batch_end(trainer, module, outputs, indices, batch, batch_idx, dataloader_idx)
        if self.write_interval != "batch":
            self._predictions[dataloader_idx].append(outputs)
            self._indices[dataloader_idx].append(indices)

    def on_predict_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        if self.write_interval == "batch":
            return
        predictions, indices = self._predictions or [[]], self._indices or [[]]
        given = predictions if len(predictions) > 1 else predictions[0]
        self.write_on_epoch_end(trainer, module, given, self._indices_to_give(indices))
        self._predictions, self._indices = [], []

    def _indices_to_give(self, indices: list[Any]) -> list[Any]:
        return indices if len(indices) > 1 else indices[0]
