"""Training a kind as a user does: a `Module`, a `Trainer` and a strategy. Run by every rank."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from stratagem_testing.record import Recorder, TrainingRecord
from stratagem_testing.trained import net_weights
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

import stratagem
from stratagem.errors import CollectiveError, StratagemError, WorkerError
from tests.parity.columns import ACCELERATOR
from tests.parity.kind import Kind, StepContext, share_of
from tests.parity.kinds import KINDS

TOGETHER_S = 3.0
"""Within which the other ranks have to refuse what one refuses."""


class KindModule(stratagem.Module):
    """A kind as the trainer takes it."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.automatic_optimization = not kind.manual
        if not kind.deferred:
            self.net = kind.built()

    def configure_model(self) -> None:
        if self.kind.deferred and not hasattr(self, "net"):
            self.net = self.kind.built()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        data = self.trainer.collectives.data
        optimizers: Any = ()
        if self.kind.manual:
            optimizers = self.optimizers()
            optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        context = StepContext(
            batch_idx,
            data.rank,
            data.world_size,
            lambda tensor: self.all_gather(tensor, sync_grads=True),
            optimizers,
            self.manual_backward,
        )
        if self.kind.manual:
            self.kind.manual_step(self.net, batch, context)
            return None
        output = self.kind.loss(self.net, batch, context)
        if self.kind.monitored:
            self.log("mean_loss", output, on_step=False, on_epoch=True, sync_dist=True)
        return output

    def configure_optimizers(self) -> Any:
        made = self.kind.optimizers(self.net)
        optimizers = made if isinstance(made, list) else [made]
        schedulers = [
            {
                "scheduler": scheduler,
                "interval": interval,
                "monitor": "mean_loss" if isinstance(scheduler, ReduceLROnPlateau) else None,
            }
            for scheduler, interval in self.kind.schedulers(optimizers)
        ]
        return (optimizers, schedulers) if schedulers else made

    def train_dataloader(self) -> DataLoader[Any]:
        """This rank's shares of the global batches, in order; `use_distributed_sampler` is False."""
        data = self.trainer.collectives.data
        shares: Sequence[Any] = [share_of(batch, data.rank, data.world_size) for batch in self.kind.batches()]
        return DataLoader(shares, batch_size=None)  # type: ignore[arg-type]  # a list is a map-style dataset

    def on_train_epoch_start(self) -> None:
        self.kind.on_epoch(self.net, self.trainer.current_epoch)


class Between(Recorder):
    """Calls what a kind does between steps, and keeps what the net has become."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"{folder}/trained")
        self.own: dict[str, Tensor] = {}

    def loss_in(self, outputs: Any) -> None:
        """Losses aren't compared: kinds return anything that a training step may."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        module.kind.before_batch(module.net, batch_idx)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)
        module.kind.after_batch(module.net, batch_idx)

    def read_weights(self, trainer: Any) -> dict[str, Tensor]:
        return net_weights(trainer, f"{self.path}-weights")

    def on_end(self, trainer: Any, module: Any, stage: str) -> None:
        super().on_end(trainer, module, stage)
        self.own = own_copies(module.net, self.weights)


def own_copies(net: torch.nn.Module, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's parameters where it holds them whole, to be held against what was saved.

    What a strategy computes with in fewer bits than it trains is left out, if it is that, rounded.
    """
    kept = {}
    for name, parameter in net.named_parameters():
        known = whole.get(name)
        held = type(parameter.data) is Tensor and not parameter.is_meta
        if held and known is not None and parameter.shape == known.shape:
            own = parameter.detach().to("cpu", copy=True)
            if own.dtype == known.dtype or not torch.equal(own, known.to(own.dtype)):
                kept[name] = own
    return kept


@dataclass(frozen=True)
class Refused:
    """What every rank of a run said before it trained, or while it did."""

    sentence: str


def train_in_rank(
    name: str, strategy: Any, options: Mapping[str, Any], devices: int, folder: str
) -> TrainingRecord | Refused:
    """Train a kind in this rank; return what was saved, and what this rank has itself.

    Raises:
        BaseException: what ended the training, where the other ranks don't refuse it as well: processes
            in such a state are not to be used again.
    """
    rank = os.environ.get("RANK", "0")
    try:
        return _train(KINDS[name], strategy, options, devices, folder)
    except StratagemError as error:
        refused = not isinstance(error, (CollectiveError, WorkerError))
        Path(folder, f"{'refused' if refused else 'failed'}-{rank}").write_text(str(error), encoding="utf-8")
        if not all_refused(folder) or dist.is_initialized():
            raise
        return Refused(str(error))
    except BaseException:
        Path(folder, f"failed-{rank}").touch()
        raise


def all_refused(folder: str | os.PathLike[str]) -> bool:
    """Whether all ranks refuse within `TOGETHER_S`: each has written a file "refused-RANK" then."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    deadline = time.monotonic() + TOGETHER_S
    while len(list(Path(folder).glob("refused-*"))) < ranks and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(list(Path(folder).glob("refused-*"))) == ranks


def first_refusal(folder: str) -> str:
    """Return what the first rank that ended said, if it refused: others then end for it left them."""
    ends = [*Path(folder).glob("refused-*"), *Path(folder).glob("failed-*")]
    first = min(ends, key=lambda path: path.stat().st_mtime_ns, default=None)
    return first.read_text(encoding="utf-8") if first and first.name.startswith("refused-") else ""


def _train(
    kind: Kind, strategy: Any, options: Mapping[str, Any], devices: int, folder: str
) -> TrainingRecord:
    by_name = isinstance(strategy, str)
    chosen = (
        {"strategy": strategy, "strategy_options": dict(options)} if by_name else {"strategy": strategy()}
    )
    with tempfile.TemporaryDirectory(prefix="rank-", dir=folder) as own:
        between = Between(folder)
        trainer = stratagem.Trainer(
            **chosen,
            accelerator=ACCELERATOR,
            devices=devices,
            precision=kind.precision,
            callbacks=[between],
            max_epochs=kind.epochs,
            accumulate_grad_batches=kind.accumulate,
            gradient_clip_val=kind.max_norm if kind.max_value is None else kind.max_value,
            gradient_clip_algorithm="norm" if kind.max_value is None else "value",
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            use_distributed_sampler=False,
            seed=7,
            run_dir=own,
        )
        trainer.fit(KindModule(kind))
        return TrainingRecord(weights=between.weights, own=between.own, steps=between.steps)
