"""Callbacks that observe the runs, and `Seen`, what they record."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.batch_size import batch_size_of
from stratagem_testing.record import Recorder, TrainingRecord, read_whole
from torch import Tensor
from torch.distributed.tensor import DTensor

from stratagem.errors import DataError
from stratagem.sdk.loops import capture_rng
from stratagem.sdk.tensors import map_tensors
from stratagem_verify import state

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer
    from torch.optim import Optimizer


@dataclass(kw_only=True)
class Seen(TrainingRecord):
    """The results of a run on one rank. `own` has all parameters and buffers that this rank has or can gather."""

    losses: list[float | None] = field(default_factory=list)
    """Loss of each micro-batch; None if the step returned none."""
    sizes: list[int | None] = field(default_factory=list)
    """Number of samples of each micro-batch."""
    manual: bool = False
    """Whether the module optimizes manually."""
    data_rank: int = 0
    num_batches: int | None = None
    """Number of batches per epoch."""
    saved_at: int = 0
    """Number of steps at the checkpoint in the middle; 0 without one."""
    batches_at: int = 0
    """Number of micro-batches before that checkpoint."""
    draws: bool = False
    """Whether a step drew random numbers."""
    batch_norms: list[str] = field(default_factory=list)
    """Names of layers that normalize with their rank's batch only."""
    trained: list[str] = field(default_factory=list)
    """Names of parameters that require gradients."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    normalization: set[str] = field(default_factory=set)
    """Names of buffers that are running statistics of normalization layers."""
    outside: dict[str, Any] = field(default_factory=dict)
    """Values outside the module's state dict, at the checkpoint in the middle or after loading it."""
    batch_digests: list[str] = field(default_factory=list)
    samples: list[tuple[str, str]] = field(default_factory=list)
    """Two digests of each of some samples, read twice with the same seed; empty if ranks may have other samples."""
    foreign: int = 0
    """Number of tensors in the optimizers that aren't the module's parameters."""
    without_optimizer: list[str] = field(default_factory=list)
    optimizer_counts: list[int] = field(default_factory=list)
    """Integers among the optimizers' settings, such as `start_preconditioning_step`."""
    has_validation: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the validation."""
    validation_draws: bool = False
    """Whether validation drew random numbers."""
    validation: list[str] = field(default_factory=list)
    """Names of values that validation changed."""


def draw_state(device: torch.device) -> str:
    """Return a digest of the states of torch's generators."""
    states = capture_rng(device)
    return state.digest([states["torch"], states.get("device", 0)])


def _counts(optimizers: Sequence[Optimizer]) -> list[int]:
    """Return the integers among the optimizers' settings and attributes."""
    settings = [
        value
        for optimizer in optimizers
        for named in (*optimizer.param_groups, optimizer.defaults, vars(optimizer))
        for value in named.values()
    ]
    return sorted({value for value in settings if type(value) is int})


class Record(Recorder):
    """Records losses, and at the end the state of the module.

    Args:
        path: prefix of files.
        load_from: checkpoint whose weights are loaded at the start.
        noise: relative size of random changes of the weights at the start.
        quiet: whether to keep the module in evaluation mode, without dropout and batch statistics.
    """

    def __init__(
        self, path: str, load_from: str | None = None, noise: float = 0.0, quiet: bool = False
    ) -> None:
        super().__init__(path)
        self.load_from, self.noise, self.quiet = load_from, noise, quiet
        self.seen = Seen(losses=self.losses)
        self._drawn = ""

    def on_start(self, trainer: Trainer, module: Module, stage: str) -> None:
        if self.load_from is not None:
            state.load_weights(trainer, self.load_from)
        if self.noise:
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for parameter in module.parameters():
                    factor = 1 + self.noise * torch.randn(parameter.shape, generator=generator)
                    parameter.mul_(factor.to(parameter))
        seen = self.seen
        seen.manual = not module.automatic_optimization
        seen.data_rank = trainer.collectives.data.rank
        seen.num_batches = trainer.num_train_batches
        seen.trained = [name for name, p in module.named_parameters() if p.requires_grad]
        own = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
        given = [p for o in trainer.prepared.optimizers for g in o.param_groups for p in g["params"]]
        everything = {id(p) for p in module.parameters()}
        seen.foreign = sum(id(p) not in everything for p in given)
        seen.optimizer_counts = _counts(trainer.prepared.optimizers)
        seen.without_optimizer = [own[key] for key in own.keys() - {id(p) for p in given}]

    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        if self.quiet:
            module.eval()
        self._drawn = draw_state(trainer.device)

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        seen = self.seen
        seen.draws = seen.draws or self._drawn != draw_state(trainer.device)
        seen.batch_norms = seen.batch_norms or state.separate_batch_norms(module)
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)
        seen.sizes.append(batch_size_of(batch))

    def loss_in(self, outputs: Any) -> Tensor | None:
        try:
            return super().loss_in(outputs)
        except DataError:
            return None  # a manual step may return anything

    def read_weights(self, trainer: Trainer) -> dict[str, Tensor]:
        # Read a checkpoint of the whole run. Other runs resume from it.
        trainer.save_checkpoint(f"{self.path}-end")
        return read_whole(trainer.runtime.session.checkpointer, f"{self.path}-end", "model/")

    def on_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        seen = self.seen
        # Copy buffers before a checkpoint is written: for it, a strategy may make them equal on all ranks.
        seen.buffers = state.own_buffers(module)
        super().on_end(trainer, module, stage)
        seen.steps, seen.weights = self.steps, self.weights
        seen.own = state.own_weights(trainer)
        seen.normalization = state.buffers_of_normalization(module)


class Capture(Record):
    """Also keeps a run's batches and the states of its generators, so that others can repeat it.

    Args:
        path: prefix of files.
        save_at: write a checkpoint at this step, or at the first one after it that doesn't end an epoch; 0 for never.
        steps: number of steps of the run.
        quiet: as for `Record`.
    """

    def __init__(self, path: str, save_at: int = 0, steps: int = 0, quiet: bool = False) -> None:
        super().__init__(path, quiet=quiet)
        self.save_at, self.max_steps = save_at, steps
        self.batches: list[tuple[int, Any]] = []
        self.rngs: list[Any] = []

    def on_start(self, trainer: Trainer, module: Module, stage: str) -> None:
        super().on_start(trainer, module, stage)
        trainer.save_checkpoint(f"{self.path}-start")
        checkpointer = trainer.runtime.session.checkpointer
        self.seen.start = read_whole(checkpointer, f"{self.path}-start", "model/")

    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, module, batch, batch_idx)
        kept = map_tensors(lambda tensor: tensor.detach().cpu().clone(), batch)
        self.batches.append((trainer.current_epoch, kept))
        self.rngs.append(capture_rng(trainer.device))
        self.seen.batch_digests.append(state.digest(kept))

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)
        seen, step, count = self.seen, trainer.global_step, trainer.num_train_batches
        within = count is None or batch_idx + 1 < count
        if (
            self.save_at
            and not seen.saved_at
            and step >= self.save_at
            and (within or step == self.max_steps - 1)
        ):
            seen.saved_at, seen.batches_at = step, len(seen.losses)
            seen.outside = state.outside_state(module)
            trainer.save_checkpoint(f"{self.path}-middle")

    def on_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        super().on_end(trainer, module, stage)
        first = trainer.collectives.data.rank
        if trainer.collectives.gather_objects(first).index(first) == trainer.global_rank:
            torch.save({"batches": self.batches, "rngs": self.rngs}, f"{self.path}-rank{first}.pt")
        trainer.collectives.barrier("verify: captured")


class Resumed(Record):
    """Keeps the values outside a module's state dict after loading a checkpoint.

    Args:
        path: prefix of files.
        names: names of those values at the checkpoint.
    """

    def __init__(self, path: str, names: Collection[str]) -> None:
        super().__init__(path)
        self.names = names

    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, module, batch, batch_idx)
        if not self.seen.losses:
            self.seen.outside = state.values_of(module, self.names)


class Validated(Record):
    """Finds the values that validation changes."""

    def on_evaluation_start(self, trainer: Trainer, module: Module, stage: str) -> None:
        self._before = self._now(trainer, module)

    def on_evaluation_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        now, before = self._now(trainer, module), self._before
        self.seen.validation += [
            name
            for name, value in now.items()
            if before.get(name) != value and name not in self.seen.validation
        ]

    def _now(self, trainer: Trainer, module: Module) -> dict[str, str]:
        tensors = trainer.prepared.model_tensors()
        weights = {
            name.removeprefix("model/"): value.to_local() if isinstance(value, DTensor) else value
            for name, value in tensors.items()
        }
        return {
            name: state.digest(value) for name, value in {**weights, **state.outside_state(module)}.items()
        }
