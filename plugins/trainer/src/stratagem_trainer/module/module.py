"""`Module`: a model with its steps, optimizers and data."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch
from stratagem_sharding.part_of_batch import refuse_in_chunk

from stratagem.errors import UsageError
from stratagem.sdk.loops import weighted_backward
from stratagem.sdk.tensors import map_values
from stratagem_trainer.metrics.metric_objects import named_values
from stratagem_trainer.module.hooks import ModuleHooks
from stratagem_trainer.module.hyperparameters import HyperparametersMixin
from stratagem_trainer.module.run import ModuleRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Self, Unpack

    from stratagem_trainer.callbacks.base import Callback
    from stratagem_trainer.loops.manual_optimizer import ManualOptimizer

Reduction = Literal["mean", "sum", "min", "max"]


class LogKeywords(TypedDict, total=False):
    """Keywords of `Module.log`."""

    prog_bar: bool
    logger: bool
    on_step: bool | None
    on_epoch: bool | None
    reduce_fx: Reduction | Callable[..., Any]
    sync_dist: bool | None
    batch_size: int | None
    add_dataloader_idx: bool
    metric_attribute: str | None
    rank_zero_only: bool


def any_arguments(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let type checkers accept steps without `batch_idx` or with `dataloader_idx`, as the loops do."""
    return method


class Module(ModuleHooks, HyperparametersMixin, ModuleRun):
    """A `torch.nn.Module` that defines how to train it.

    Override `training_step` and `configure_optimizers` to fit. Override `validation_step`, `test_step` and
    `predict_step` for the other stages, and the `*_dataloader` methods if you don't pass loaders to the trainer.
    Create layers in `__init__`, or in `configure_model` to let a strategy create them in shards.
    """

    automatic_optimization: bool = True
    """False: `training_step` calls `manual_backward`, and steps `self.optimizers()` itself."""

    replica_device: torch.device | None = None
    """The device of a copy of the module that a strategy runs on another device than the run's."""

    # Steps ----------------------------------------------------------------------------------------

    @any_arguments
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return a micro-batch's mean loss: a scalar, or a dict with "loss"; None to skip the micro-batch."""
        raise UsageError(f"{type(self).__qualname__} has no training_step: fit needs one")

    @any_arguments
    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate a batch, and log its metrics with `self.log`."""
        raise UsageError(f"{type(self).__qualname__} has no validation_step: validate needs one")

    @any_arguments
    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate a batch, and log its metrics with `self.log`."""
        raise UsageError(f"{type(self).__qualname__} has no test_step: test needs one")

    def training_step_end(self, outputs: list[Any]) -> Any:
        """Combine the outputs of a batch's chunks. Override it to compute something over the whole batch.

        If you override it, every strategy calls it after `training_step`.

        Args:
            outputs: what the step returned for each chunk of the micro-batch, in the order of its samples. There is
                one chunk if the strategy doesn't split batches.
        """
        return outputs[0]

    def validation_step_end(self, outputs: list[Any]) -> Any:
        """Combine the outputs of a batch's chunks; see `training_step_end`."""
        return outputs[0]

    def test_step_end(self, outputs: list[Any]) -> Any:
        """Combine the outputs of a batch's chunks; see `training_step_end`."""
        return outputs[0]

    @any_arguments
    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """Return predictions for a batch. By default, call `forward` with the batch."""
        return self(batch)

    # Construction ---------------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Create layers in the contexts of the strategy and the precision. Called once in every worker."""

    def parallelize(self, mesh: Any) -> Any:
        """Split this module among ranks that share one copy of it. Optional, for strategies that do so.

        Args:
            mesh: a `torch.distributed.device_mesh.DeviceMesh`, whose dimensions the strategy names.

        Returns:
            A plan that the strategy accepts; None if this method has split the module itself; or NotImplemented to
            use the strategy's own plans.
        """
        return NotImplemented

    def configure_callbacks(self) -> Callback | Sequence[Callback]:
        """Return callbacks for this module's runs. They replace the trainer's callbacks of the same class."""
        return ()

    def configure_optimizers(self) -> Any:
        """Return an optimizer, a list of several, ([optimizers], [schedulers]), or a dict.

        A dict has "optimizer", and may have "lr_scheduler": a scheduler, or a dict with "scheduler", "interval"
        ("step" or "epoch"), "frequency" and "monitor". "monitor" names the metric for a scheduler that takes one.
        """
        raise UsageError(
            f"{type(self).__qualname__} has no configure_optimizers: fit needs one; define it, and return an "
            "optimizer, such as torch.optim.Adam(self.parameters())"
        )

    # Data -----------------------------------------------------------------------------------------

    def train_dataloader(self) -> Iterable[Any] | None:
        """Return training batches. Called in every worker."""
        return None

    def val_dataloader(self) -> Iterable[Any] | None:
        """Return validation batches. Called in every worker."""
        return None

    def test_dataloader(self) -> Iterable[Any] | None:
        """Return test batches. Called in every worker."""
        return None

    def predict_dataloader(self) -> Iterable[Any] | None:
        """Return batches to predict. Called in every worker."""
        return None

    # While it runs ----------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The run's device; outside a run, the device of the parameters. Create new tensors on it."""
        if self.replica_device is not None:
            return self.replica_device
        if self._trainer is not None and self._trainer.is_live:
            return self._trainer.device
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def global_rank(self) -> int:
        """Rank of this process; 0 outside a run."""
        return self._trainer.global_rank if self._trainer is not None else 0

    @property
    def local_rank(self) -> int:
        """Rank of this process on its node; 0 outside a run."""
        return self._trainer.local_rank if self._trainer is not None else 0

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Reduction | Callable[..., Any] = "mean",
        *,
        sync_dist: bool | None = None,
        batch_size: int | None = None,
        add_dataloader_idx: bool = True,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value of this batch. With both on_step and on_epoch, it is logged as `x_step`, `x_epoch` and `x`.

        Args:
            name: such as "val_loss"; the same on every rank that logs with `sync_dist`.
            value: a number; a tensor with one element on any device, which is copied without waiting for the device;
                a `LossSum`, whose means use its weight; or a torchmetrics metric object that is an attribute of this
                module. For the step, a metric object's value of this batch is logged; for the epoch, its value over
                all ranks, after which it is reset.
            prog_bar: show it in the progress bar.
            logger: pass it to the loggers.
            on_step: log it for this step. By default, only in training steps.
            on_epoch: log its reduction over the epoch, in float64. By default, everywhere except in training steps.
            reduce_fx: how batches are reduced to an epoch's value: "mean", weighted by batch size, "sum", "min" or
                "max", or torch's functions of these names.
            sync_dist: also reduce it over ranks. By default, only in evaluation. All values of one logging point
                share one collective.
            batch_size: number of samples in this batch; inferred from the batch by default.
            add_dataloader_idx: append "/dataloader_idx_N" if an evaluation has several loaders. If False, use
                different names for each loader's values.
            metric_attribute: path of the metric object in this module; found by default.
            rank_zero_only: log rank 0's value, and ignore those of other ranks.

        Raises:
            LoggingError: the value, the name or the combination of options can't be logged.
        """
        self.trainer.metrics.log(
            name,
            value,
            prog_bar,
            logger,
            on_step,
            on_epoch,
            reduce_fx,
            sync_dist,
            batch_size,
            add_dataloader_idx,
            metric_attribute,
            rank_zero_only,
        )

    def log_dict(self, values: Mapping[str, Any], *args: Any, **how: Unpack[LogKeywords]) -> None:
        """Log several values with the same options, or all of a MetricCollection; see `log`."""
        for name, value in named_values(values):
            self.log(name, value, *args, **how)

    def all_gather(self, data: Any, sync_grads: bool = False) -> Any:
        """Stack the values of all ranks that read different batches, along a new first dim. Collective.

        Ranks that share one copy of the model count as one. See `Collectives.all_gather`.

        Args:
            data: a tensor, a number, or lists, tuples and dicts of these; of the same shape on all ranks.
            sync_grads: whether gradients flow back to the ranks that the tensors come from.

        Raises:
            CombinationError: the strategy splits batches, and the step has one of several chunks.
        """
        refuse_in_chunk("all_gather")
        ranks = self.trainer.collectives.data
        return map_values(lambda tensor: ranks.all_gather(tensor, sync_grads), data, self.device)

    # Manual optimization ----------------------------------------------------------------------------

    def optimizers(self) -> ManualOptimizer | list[ManualOptimizer]:
        """The optimizers to `step` and `zero_grad` manually: one, or a list of several."""
        return self.trainer.manual_optimizers()

    def manual_backward(
        self, loss: torch.Tensor, *, weight: torch.Tensor | float | None = None, **kwargs: Any
    ) -> None:
        """Run backward through the strategy, which reduces gradients. Collective.

        Args:
            loss: a scalar.
            weight: weight of a loss that is a sum; see `Runtime.backward`.
            kwargs: passed to `Tensor.backward`.
        """
        state = self.trainer.state
        state.hooks("on_before_backward", loss)
        try:
            if weight is not None or state.prepared.loss_weights.is_used:
                weighted_backward(state.prepared, [state.prepared], loss, weight, **kwargs)
            else:
                state.prepared.backward(loss, **kwargs)
        except Exception:
            state.prepared.abandon_backward()
            raise
        state.hooks("on_after_backward")

    # Checkpoints ----------------------------------------------------------------------------------

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | os.PathLike[str],
        map_location: str | torch.device | None = None,
        strict: bool = True,
        allowed: Iterable[Any] = (),
        **overrides: Any,
    ) -> Self:
        """Construct a module with the weights in a trainer's checkpoint, of any strategy and number of ranks.

        Not collective: it works in any process. The constructor gets the saved hyperparameters.

        Args:
            checkpoint_path: a folder, or an fsspec URL.
            map_location: the device of the returned module; None is the CPU.
            strict: whether the names of tensors must match. If False, tensors that both have are loaded.
            allowed: classes and functions that hyperparameters may name, in addition to those in the signatures of
                this class's constructors. Names in a checkpoint are never imported.
            overrides: arguments of the constructor that replace those in the checkpoint.

        Raises:
            CheckpointError: the checkpoint is missing or damaged, is of another module, or names a forbidden class.
            ConfigError: an argument of the constructor is missing or unknown.
        """
        from stratagem_trainer.saving.load_module import load_module

        return load_module(cls, checkpoint_path, map_location, strict, allowed, overrides)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None, "_toggled": None}
