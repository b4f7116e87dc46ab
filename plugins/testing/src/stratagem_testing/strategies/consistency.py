"""A run compared with itself: that needs no tolerance, and so holds strategies that lose something, too.

Nothing here is aligned: steps with ends of epochs, checkpoints and validations with what a strategy does
every k steps, such as averages of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.callbacks.base import Callback
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import DataLoader, Subset

from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.recipe import Recipe, Schedule, Trained
from stratagem_testing.same import expect_close, expect_identical
from stratagem_testing.subject import TOLERANCES, StrategySubject
from stratagem_testing.trained import RecipeModule, batch_size, module_of, train, whole_weights

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer


@dataclass(frozen=True)
class Stateful(Recipe):
    """Has state of every kind: momenta, a schedule, running statistics and random numbers; 5 steps per epoch."""

    steps: int | None = 14
    samples: int = 80
    accumulate: int = 2

    def net(self) -> nn.Module:
        net = super().net()
        assert isinstance(net, nn.Sequential)
        return nn.Sequential(net[0], nn.BatchNorm1d(16), net[1], nn.Dropout(0.3), net[2])

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        return [torch.optim.AdamW(net.parameters(), lr=1e-2)]

    def schedules(self, optimizers: Sequence[Optimizer]) -> Sequence[Schedule]:
        return [(lr_scheduler.StepLR(optimizers[0], 3, 0.5), "step")]


@dataclass(frozen=True)
class Repeatable(Recipe):
    """Draws nothing and counts nothing, so that micro-batches of a window can be repeated."""

    steps: int | None = 8
    samples: int = 80
    accumulate: int = 2


STATEFUL = Stateful()
REPEATABLE = Repeatable()
SAVED: Mapping[Recipe, tuple[int, ...]] = {STATEFUL: (10, 16), REPEATABLE: (7,)}
"""After so many micro-batches: the last of an epoch, one in the middle of an epoch, one in the middle of a window."""


@dataclass
class _SaveAfter(Callback):
    """Writes a checkpoint after each of some micro-batches."""

    micro_batches: Sequence[int]
    folder: str
    seen: int = 0

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.seen += 1
        if self.seen in self.micro_batches:
            trainer.save_checkpoint(f"{self.folder}/after-{self.seen}")


@check
def check_save_and_load(subject: StrategySubject) -> None:
    """Continued from any micro-batch, a run has every bit of one that was never interrupted."""
    for recipe, saved in SAVED.items():
        for rank, (whole, *continued) in enumerate(subject.run(_interrupted, recipe, saved)):
            for after, resumed in zip(saved, continued):
                first = after - after % recipe.accumulate
                who = f"rank {rank}, continued from micro-batch {after}"
                expect(
                    len(resumed.losses) == len(whole.losses) - first,
                    f"{who}, trains {len(resumed.losses)} micro-batches more, not {len(whole.losses) - first}",
                )
                expect_identical(resumed, whole, who, "the run that was never interrupted")


def _interrupted(subject: StrategySubject, recipe: Recipe, saved: Sequence[int]) -> list[Trained]:
    whole = train(subject, recipe, [_SaveAfter(saved, subject.folder)])
    return [whole, *(train(subject, recipe, ckpt_path=f"{subject.folder}/after-{after}") for after in saved)]


# Validation ---------------------------------------------------------------------------------------------


class _Validated(RecipeModule):
    """Keeps what validations compute."""

    def __init__(self, recipe: Recipe, batch_size: int) -> None:
        super().__init__(recipe, batch_size)
        self.evaluated: list[tuple[Tensor, Tensor]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores = self.recipe.predict(self.net, batch)
        self.evaluated.append((batch[0].cpu(), scores.detach().cpu()))

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Subset(self.recipe.dataset(), range(30)), 4)


VALIDATED: Mapping[str, Any] = {"module_class": _Validated, "val_check_interval": 4}
"""After steps 2 and 4 of each epoch's 5."""
TRIED_FIRST: Mapping[str, Any] = {"num_sanity_val_steps": 2, "inference_mode": True}
"""Buffers that a strategy fills in its first forward are then an evaluation's."""


@check
def check_validation_changes_nothing(subject: StrategySubject) -> None:
    """A run with validations and checkpoints in between has every bit of one without."""
    for rank, (alone, between) in enumerate(subject.run(_with_and_without)):
        expect_identical(between, alone, f"rank {rank}, with validations", "the run without")


def _with_and_without(subject: StrategySubject) -> tuple[Trained, Trained]:
    return (
        train(subject, STATEFUL),
        train(subject, STATEFUL, [_SaveAfter((7, 16), subject.folder)], **VALIDATED, **TRIED_FIRST),
    )


@dataclass
class _Saved(Callback):
    """After some validations a checkpoint, and how far what was evaluated is from the checkpoint's weights."""

    folder: str
    steps: Sequence[int] = (4, 7, 14)
    paths: list[str] = field(default_factory=list)
    evaluated: list[list[Tensor]] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)

    def on_evaluation_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        assert isinstance(module, _Validated)
        batches, module.evaluated = module.evaluated, []
        if trainer.global_step not in self.steps:
            return
        self.evaluated.append([scores for _, scores in batches])
        self.paths.append(f"{self.folder}/validated-{len(self.paths)}")
        trainer.save_checkpoint(self.paths[-1])
        net = module.recipe.net().eval()
        net.load_state_dict(whole_weights(trainer, module, f"{self.folder}/evaluated"))
        with torch.no_grad():
            distances = [float((net(x) - scores).abs().max()) for x, scores in batches]
        self.apart.append(max(distances, default=0.0))


@check
def check_checkpoint_is_what_was_evaluated(subject: StrategySubject) -> None:
    """What a validation computes is what a checkpoint of that step computes, loaded here or in plain PyTorch."""
    close = 10 * TOLERANCES["32-true"]
    for rank, (saved, loaded) in enumerate(subject.run(_evaluated_and_saved)):
        expect(len(saved.evaluated) == len(saved.steps), f"rank {rank} hasn't validated after each 2 steps")
        for index, (ours, theirs) in enumerate(zip(saved.evaluated, loaded)):
            where = f"validation {index} on rank {rank}"
            expect(
                saved.apart[index] <= close,
                f"{where} computes what is {saved.apart[index]:.2g} away from what its checkpoint's weights "
                "compute in plain PyTorch",
            )
            expect(
                len(ours) == len(theirs) and all(map(torch.equal, ours, theirs)),
                f"{where} isn't repeated by validating its checkpoint",
            )


def _evaluated_and_saved(subject: StrategySubject) -> tuple[_Saved, list[list[Tensor]]]:
    saved = _Saved(subject.folder)
    train(subject, STATEFUL, [saved], **VALIDATED)
    loaded = []
    for path in saved.paths:
        module = _Validated(STATEFUL, batch_size(subject, STATEFUL))
        subject.trainer().validate(module, ckpt_path=path)
        loaded.append([scores for _, scores in module.evaluated])
    return saved, loaded


# The end ------------------------------------------------------------------------------------------------


@check
def check_ranks_after_fit(subject: StrategySubject) -> None:
    """After `fit` every rank's module has the parameters and buffers of a checkpoint, where it has whole ones."""
    by_rank = subject.run(_left)
    if not any(left for left, _ in by_rank):
        raise NotApplicable("no rank is left with whole parameters or buffers")
    for rank, (left, weights) in enumerate(by_rank):
        known = {name: weights[name] for name in left}
        expect_close(left, known, 0.0, f"after the fit, rank {rank}", "a checkpoint of the last step")


@dataclass
class _IsLeftSharded(Callback):
    """Finds out whether a rank is left with its own shards, whatever its parameters look like."""

    found: bool = False

    def on_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        self.found = trainer.prepared.leaves_module_sharded


def _left(subject: StrategySubject) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train twice: return what the module has whole, and what was saved at the end. Run by every rank."""
    # One that is saved may be made equal by that.
    module, sharded = module_of(subject, STATEFUL), _IsLeftSharded()
    trainer = subject.trainer(
        max_steps=STATEFUL.steps, accumulate_grad_batches=STATEFUL.accumulate, callbacks=[sharded]
    )
    trainer.fit(module)
    whole = dict(module.net.named_buffers()) if sharded.found else module.net.state_dict()
    left = {
        name: value.detach().cpu().clone()
        for name, value in whole.items()
        if not hasattr(value, "placements") and not value.is_meta
    }
    saved = train(subject, STATEFUL).weights
    return {name: value for name, value in left.items() if value.shape == saved[name].shape}, saved
