"""`StochasticWeightAveraging`: at the end of a fit, sets the weights to the mean of the late epochs' weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import torch
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.stage.batch_norm import BATCH_NORMS
from torch import nn
from torch.optim.swa_utils import SWALR, get_swa_multi_avg_fn

from stratagem.errors import ConfigError
from stratagem_callbacks.averages import Averages, read_saved, restore

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView

    from stratagem import CheckpointReader, Prepared


class StochasticWeightAveraging(Callback):
    """Average the weights at the end of late epochs, and train these epochs at their own rate (Izmailov et al.,
    2018).

    From the epoch `swa_epoch_start` on, the learning rates go to `swa_lrs` as under torch's SWALR, and the module's
    schedulers have no effect. At the end of the fit the module gets the averages. Statistics of batch normalization
    are then computed again in one pass over the training batches, as `torch.optim.swa_utils.update_bn` does.

    Args:
        swa_lrs: the rate of all groups, or one for each.
        swa_epoch_start: the first such epoch: an int counts from 1, a float is a fraction of `max_epochs`.
        annealing_epochs: in how many epochs the rates reach `swa_lrs`.
        annealing_strategy: "cos" or "linear".
        avg_fn: as of `WeightAveraging`; None is the mean.
        device: must be None: the averages are on the parameters' devices.

    Raises:
        ConfigError: a value isn't allowed.
    """

    is_restored_in_evaluations = False
    order = -10
    """Runs before callbacks that log learning rates, so that they log the rates that are used."""
    needs = ("changes_between_steps",)

    def __init__(
        self,
        swa_lrs: float | Sequence[float],
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: Literal["cos", "linear"] = "cos",
        avg_fn: Callable[..., torch.Tensor] | None = None,
        device: Any = None,
    ) -> None:
        rates = [swa_lrs] if isinstance(swa_lrs, (int, float)) else list(swa_lrs)
        if not rates or not all(isinstance(rate, (int, float)) and rate > 0 for rate in rates):
            raise ConfigError(f"StochasticWeightAveraging got swa_lrs={swa_lrs!r}; give numbers above 0")
        fraction = isinstance(swa_epoch_start, float)
        if not (0 <= swa_epoch_start <= 1 if fraction else swa_epoch_start >= 1):
            raise ConfigError(
                f"StochasticWeightAveraging got swa_epoch_start={swa_epoch_start!r}; give an epoch from 1, or a "
                "fraction from 0.0 to 1.0"
            )
        if annealing_strategy not in ("cos", "linear"):
            raise ConfigError(
                f"StochasticWeightAveraging got annealing_strategy={annealing_strategy!r}; allowed are 'cos' and "
                "'linear'"
            )
        if device is not None:
            raise ConfigError(
                "StochasticWeightAveraging keeps the averages on the parameters' devices: leave device out"
            )
        self.swa_lrs, self.swa_epoch_start = rates, swa_epoch_start
        self.annealing_epochs, self.annealing_strategy = annealing_epochs, annealing_strategy
        self._avg_fn = avg_fn
        self._averages: Averages | None = None
        self._rates: SWALR | None = None
        self._saved: dict[str, Any] = {"count": 0, "rates": None}

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if stage != "fit":
            return
        if isinstance(self.swa_epoch_start, float):
            if trainer.max_epochs is None or trainer.max_epochs < 0:
                raise ConfigError(
                    "StochasticWeightAveraging with a fraction as swa_epoch_start needs max_epochs"
                )
            self._first = max(int(trainer.max_epochs * self.swa_epoch_start) - 1, 0)
        else:
            self._first = self.swa_epoch_start - 1
        if self._saved["rates"] is not None:
            self._rates = self._annealing(trainer)

    def on_train_epoch_start(self, trainer: TrainerView, module: Module) -> None:
        if trainer.current_epoch >= self._first and self._rates is None:
            self._rates = self._annealing(trainer)

    def on_train_batch_start(self, trainer: TrainerView, module: Module, batch: Any, batch_idx: int) -> None:
        if self._rates is not None:
            groups = (group for optimizer in trainer.prepared.optimizers for group in optimizer.param_groups)
            for group, own in zip(groups, self._rates.optimizer.param_groups):
                group["lr"] = own["lr"]

    def on_train_epoch_end(self, trainer: TrainerView, module: Module) -> None:
        if self._rates is None:
            return
        if self._averages is None:
            self._averages = Averages(trainer.prepared, uses_buffers=False)
        with torch.no_grad():
            self._averages.add(trainer.prepared, self._update)
        self._rates.optimizer.step()
        self._rates.step()

    def on_train_end(self, trainer: TrainerView, module: Module) -> None:
        if self._averages is not None:
            restore(trainer.prepared, self._averages.tensors)
            renew_batch_norm(trainer, module)

    def teardown(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._saved = self.state_dict()
        self._averages = self._rates = None

    def state_dict(self) -> dict[str, Any]:
        if self._rates is None:
            return self._saved
        rates: dict[str, Any] = {"lrs": [group["lr"] for group in self._rates.optimizer.param_groups]}
        rates["swalr"] = {k: v for k, v in self._rates.state_dict().items() if not callable(v)}
        return {"count": self._averages.count if self._averages is not None else 0, "rates": rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved = dict(state)

    def save_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        if self._averages is not None:
            tensors.update(self._averages.saved(self.tensor_prefix))

    def load_tensors(self, prepared: Prepared, reader: CheckpointReader) -> None:
        saved = read_saved(prepared, reader, self.tensor_prefix)
        if saved is not None:
            self._averages = Averages(prepared, False, saved, self._saved["count"])

    def _update(self, averages: Any, current: Any, count: int) -> None:
        if self._avg_fn is None:
            get_swa_multi_avg_fn()(averages, current, count)  # type: ignore[no-untyped-call]  # torch has no types for it
            return
        for kept, value in zip(averages, current):
            kept.copy_(self._avg_fn(kept, value, count))

    def _annealing(self, trainer: TrainerView) -> SWALR:
        """Torch's scheduler for stand-ins of the optimizers' groups, which have only the groups' rates."""
        groups = [group for optimizer in trainer.prepared.optimizers for group in optimizer.param_groups]
        if len(self.swa_lrs) not in (1, len(groups)):
            raise ConfigError(
                f"StochasticWeightAveraging got {len(self.swa_lrs)} swa_lrs for {len(groups)} parameter groups: "
                "give one number, or one for each"
            )
        saved = self._saved["rates"]
        rates = [float(group["lr"]) for group in groups] if saved is None else saved["lrs"]
        stand_ins = torch.optim.SGD([{"params": [torch.zeros(1)], "lr": rate} for rate in rates])
        targets: Any = self.swa_lrs * len(groups) if len(self.swa_lrs) == 1 else self.swa_lrs
        annealing = SWALR(stand_ins, targets, self.annealing_epochs, self.annealing_strategy)
        if saved is not None:
            annealing.load_state_dict(dict(saved["swalr"]))
            for group, rate in zip(stand_ins.param_groups, rates):
                group["lr"] = rate
        self._saved = {"count": 0, "rates": None}
        return annealing

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_averages": None, "_rates": None}


@torch.no_grad()
def renew_batch_norm(trainer: TrainerView, module: nn.Module) -> None:
    """Compute the running statistics of batch normalization again, in an epoch of training batches. Collective.

    The statistics are averaged over the ranks. Nothing is logged, and no parameter changes.
    """
    norms = [
        each for each in module.modules() if isinstance(each, BATCH_NORMS) and each.running_mean is not None
    ]
    data = trainer.state.train_data
    if not norms or data is None:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    prepared, metrics = trainer.prepared, trainer.metrics
    module.train()
    metrics.muted = True
    try:
        batches = iter(prepared.dataloader(data.train.epoch(trainer.progress.epoch)))
        for idx, batch in enumerate(islice(batches, trainer.num_train_batches)):
            prepared.evaluate("training_step", batch, idx)
    finally:
        metrics.muted = False
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
    ranks = trainer.collectives.data
    if ranks.world_size > 1:
        for norm in norms:
            for statistic in (norm.running_mean, norm.running_var):
                assert statistic is not None
                statistic.copy_(ranks.all_reduce(statistic))
