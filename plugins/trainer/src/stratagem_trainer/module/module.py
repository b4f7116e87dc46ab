"""`Module`: a model together with its steps, its optimizers and its data."""

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
    """Let type checkers accept overrides that leave out `batch_idx` or take `dataloader_idx`, as the loops do."""
    return method


class Module(ModuleHooks, HyperparametersMixin, ModuleRun):
    """A `torch.nn.Module` that says how to train it.

    Override `training_step` and `configure_optimizers` to fit, `validation_step`, `test_step` and
    `predict_step` for the other commands, and the `*_dataloader` methods where loaders aren't passed
    to the trainer. Create layers in `__init__`, or in `configure_model` to let a strategy build them
    in shards.
    """

    automatic_optimization: bool = True
    """False: `training_step` calls `manual_backward`, and steps `self.optimizers()`, itself."""

    replica_device: torch.device | None = None
    """Set by a strategy on copies of the module that it runs on other devices than the run's."""

    # Steps ----------------------------------------------------------------------------------------

    @any_arguments
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return a micro-batch's mean loss: a scalar, a dict with "loss", or None to skip it."""
        raise UsageError(f"{type(self).__qualname__} has no training_step: fit needs one")

    @any_arguments
    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate a batch, and log its metrics by `self.log`."""
        raise UsageError(f"{type(self).__qualname__} has no validation_step: validate needs one")

    @any_arguments
    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate a batch, and log its metrics by `self.log`."""
        raise UsageError(f"{type(self).__qualname__} has no test_step: test needs one")

    def training_step_end(self, outputs: list[Any]) -> Any:
        """Combine the outputs of a batch's chunks: optional, for what needs the whole batch at once.

        If you override it, every strategy calls it after `training_step`.

        Args:
            outputs: what the step returned for each chunk of the micro-batch, in the order of its samples. One chunk
                where the strategy doesn't split batches.
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
        """Return predictions for a batch; without an override, the forward of the batch."""
        return self(batch)

    # Construction ---------------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Create layers, under the strategy's and the precision's context; called once in every worker."""

    def parallelize(self, mesh: Any) -> Any:
        """Say how to split this module among ranks that share one copy: optional, for strategies that do so.

        Args:
            mesh: a `torch.distributed.device_mesh.DeviceMesh`, whose dimensions the strategy names.

        Returns:
            A plan as the strategy takes it, None where this method has split the module itself, or NotImplemented,
            which leaves it to the strategy's own plans.
        """
        return NotImplemented

    def configure_callbacks(self) -> Callback | Sequence[Callback]:
        """Return callbacks for this module's runs; they replace the trainer's callbacks of the same class."""
        return ()

    def configure_optimizers(self) -> Any:
        """Return an optimizer, several, ([optimizers], [schedulers]), or a dict with "optimizer" and
        "lr_scheduler" (a scheduler, or {"scheduler", "interval": "step" | "epoch", "frequency",
        "monitor"}), and "monitor" where the scheduler takes a metric.
        """
        raise UsageError(
            f"{type(self).__qualname__} has no configure_optimizers: fit needs one; define it, and return an "
            "optimizer, as torch.optim.Adam(self.parameters())"
        )

    # Data -----------------------------------------------------------------------------------------

    def train_dataloader(self) -> Iterable[Any] | None:
        """Return training batches; called in every worker."""
        return None

    def val_dataloader(self) -> Iterable[Any] | None:
        """Return validation batches; called in every worker."""
        return None

    def test_dataloader(self) -> Iterable[Any] | None:
        """Return test batches; called in every worker."""
        return None

    def predict_dataloader(self) -> Iterable[Any] | None:
        """Return batches to predict; called in every worker."""
        return None

    # While it runs ----------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where new tensors belong: the run's device, or the parameters' outside a run."""
        if self.replica_device is not None:
            return self.replica_device
        if self._trainer is not None and self._trainer.is_live:
            return self._trainer.device
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def global_rank(self) -> int:
        """This process among all; 0 outside a run."""
        return self._trainer.global_rank if self._trainer is not None else 0

    @property
    def local_rank(self) -> int:
        """This process among those of its node; 0 outside a run."""
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
        """Log a value of this batch; where both on_step and on_epoch are set, as `x_step`, `x_epoch` and `x`.

        Args:
            name: as "val_loss"; the same on every rank that logs with `sync_dist`.
            value: a number; a tensor with one element on any device, which is copied and not waited for; a `LossSum`,
                whose means go by its weight; or a metric object of torchmetrics that is an attribute of this module:
                its value of this batch for the step, and for the epoch what it computes over all ranks, after which
                it is reset.
            prog_bar: show it in the progress bar.
            logger: pass it to the loggers.
            on_step: log it for this step; by default in training steps only.
            on_epoch: log its reduction over the epoch, in float64; by default anywhere but in training steps.
            reduce_fx: how batches are reduced to an epoch's value: "mean", which weighs them by size, "sum", "min" or
                "max", or torch's functions of these names.
            sync_dist: reduce over ranks too; by default in evaluation only. All values of one logging
                point share one collective.
            batch_size: samples in this batch; read off the batch by default.
            add_dataloader_idx: append "/dataloader_idx_N" where an evaluation has several loaders; without, give each
                loader's values different names.
            metric_attribute: where in this module the metric object is; found by default.
            rank_zero_only: log rank 0's value, whatever the others do.

        Raises:
            LoggingError: a value, a name or a combination that can't be logged.
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
        """Log several values alike, or all of a MetricCollection; see `log`."""
        for name, value in named_values(values):
            self.log(name, value, *args, **how)

    def all_gather(self, data: Any, sync_grads: bool = False) -> Any:
        """Stack what all ranks that read different batches have, along a new first dim. Collective.

        Ranks that share one copy of the model, by layers or by tensors, count as one. See `Collectives.all_gather`.

        Args:
            data: a tensor, a number, or lists, tuples and dicts of these; of one shape on all ranks.
            sync_grads: whether gradients go back to the ranks that the tensors come from.

        Raises:
            CombinationError: the strategy splits batches, and the step has one part of several.
        """
        refuse_in_chunk("all_gather")
        ranks = self.trainer.collectives.data
        return map_values(lambda tensor: ranks.all_gather(tensor, sync_grads), data, self.device)

    # Manual optimization ----------------------------------------------------------------------------

    def optimizers(self) -> ManualOptimizer | list[ManualOptimizer]:
        """The optimizers to `step` and `zero_grad` by hand: one, or a list where there are several."""
        return self.trainer.manual_optimizers()

    def manual_backward(
        self, loss: torch.Tensor, *, weight: torch.Tensor | float | None = None, **kwargs: Any
    ) -> None:
        """Run backward through the strategy, which reduces gradients; collective.

        Args:
            loss: a scalar.
            weight: where the loss is a sum: as of `Runtime.backward`.
            kwargs: of `Tensor.backward`.
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
        """Return a module with the weights of a trainer's checkpoint, of any strategy and number of ranks.

        Not collective: works in any process. The constructor gets what `save_hyperparameters` kept.

        Args:
            checkpoint_path: a folder, or an fsspec URL.
            map_location: the device of the module that is returned; the CPU where it is None.
            strict: whether names of tensors must be the same; otherwise those that both have are loaded.
            allowed: classes and functions that hyperparameters may name, in addition to those in the signatures of
                this class's constructors. No name of a checkpoint is ever imported.
            overrides: arguments of the constructor, in the place of those in the checkpoint.

        Raises:
            CheckpointError: the checkpoint is missing or damaged, is of another module, or names a forbidden class.
            ConfigError: an argument of the constructor is missing, or has an unknown name.
        """
        from stratagem_trainer.saving.load_module import load_module

        return load_module(cls, checkpoint_path, map_location, strict, allowed, overrides)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None, "_toggled": None}
