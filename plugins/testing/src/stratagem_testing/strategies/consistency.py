"""Compare a run with itself. This needs no tolerance, so it also tests strategies that lose precision.

These events are at different steps on purpose: ends of epochs, checkpoints, validations, and what a strategy does
every k steps, such as averaging parameters.
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

from stratagem.errors import UsageError
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.recipe import Recipe, Trained
from stratagem_testing.reference import Schedule
from stratagem_testing.same import expect_close, expect_identical
from stratagem_testing.subject import TOLERANCES, StrategySubject
from stratagem_testing.trained import RecipeModule, batch_size, module_of, net_weights, train

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.trainer import Trainer


@dataclass(frozen=True)
class Stateful(Recipe):
    """Has state of every kind: momenta, a schedule, running statistics and random numbers. 5 steps per epoch."""

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
    """Has no random numbers and no counters, so that the micro-batches of a window can be repeated."""

    steps: int | None = 8
    samples: int = 80
    accumulate: int = 2


STATEFUL = Stateful()
REPEATABLE = Repeatable()
SAVED: Mapping[Recipe, tuple[int, ...]] = {STATEFUL: (10, 16), REPEATABLE: (7,)}
"""Micro-batches after which to save: at the end of an epoch, in the middle of one, and in the middle of a window."""


@dataclass
class SaveAfter(Callback):
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
    """A run that is resumed from any micro-batch is bitwise equal to one that was never interrupted."""
    for recipe, saved in SAVED.items():
        for rank, (whole, *continued) in enumerate(subject.run(_interrupted, recipe, saved)):
            for after, resumed in zip(saved, continued):
                first = after - after % recipe.accumulate
                who = f"rank {rank}, continued from micro-batch {after}"
                expect(
                    len(resumed.losses) == len(whole.losses) - first,
                    f"{who}, trains {len(resumed.losses)} more micro-batches, not {len(whole.losses) - first}",
                )
                expect_identical(resumed, whole, who, "the run that was never interrupted")


def _interrupted(subject: StrategySubject, recipe: Recipe, saved: Sequence[int]) -> list[Trained]:
    whole = train(subject, recipe, [SaveAfter(saved, subject.folder)])
    return [whole, *(train(subject, recipe, ckpt_path=f"{subject.folder}/after-{after}") for after in saved)]


class _EveryKind(nn.Module):
    """Has tied parameters, a 0-dim and a frozen one, buffers of many dtypes, and state that is not a tensor."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.first, self.last = nn.Linear(6, 6, bias=False), nn.Linear(6, 6)
            self.head, self.frozen = nn.Linear(6, 4), nn.Linear(6, 6).requires_grad_(False)
        self.last.weight = self.first.weight
        self.factor = nn.Parameter(torch.ones(shape))
        self.calls = 0
        for name, value in KEPT_BUFFERS.items():
            self.register_buffer(name, value.clone())

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        hidden = torch.tanh(self.last(torch.tanh(self.first(x)) * self.factor) + self.frozen(x))
        # The extra state changes the output, so that a wrong one shows.
        scores: Tensor = self.head(hidden) * (1 + 0.01 * self.calls)
        return scores

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


KEPT_BUFFERS: Mapping[str, Tensor] = {
    "of_float64": torch.tensor([1 / 3, 5e-324], dtype=torch.float64),
    "of_float16": torch.tensor([6e-8, 65504.0], dtype=torch.float16),
    "of_int8": torch.tensor([-128, 127], dtype=torch.int8),
    "of_uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "of_int64": torch.tensor(2**53 + 1),
    "of_bool": torch.tensor([True, False]),
}
"""Buffers that nothing changes."""


class _Counting(torch.optim.SGD):
    """Has a state for each parameter that is not a tensor, and on which its steps depend."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["steps_of_its_own"] = 1 + int(state.get("steps_of_its_own", 0))
                    parameter.grad.mul_(1 / state["steps_of_its_own"])
        return super().step(closure)


@dataclass(frozen=True)
class _Everything(Recipe):
    steps: int | None = 4
    counts: bool = True
    """Whether the optimizer has states that are not tensors."""
    scalar: bool = True
    """Whether a parameter is 0-dim."""

    def net(self) -> nn.Module:
        return _EveryKind(() if self.scalar else (1,))

    def optimizers(self, net: nn.Module) -> Sequence[Optimizer]:
        named = {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
        groups: list[dict[str, Any]] = [
            {
                "params": [p for name, p in named.items() if "head" not in name],
                "lr": 0.1,
                "weight_decay": 0.1,
            },
            {"params": [p for name, p in named.items() if "head" in name], "lr": 0.02, "momentum": 0.5},
        ]
        return [(_Counting if self.counts else torch.optim.SGD)(groups, lr=0.1, momentum=0.9)]


@dataclass
class _Calls(Callback):
    """Keeps the net's state that is not a tensor."""

    found: int = -1

    def on_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        assert isinstance(module, RecipeModule)
        self.found = int(module.net.calls)  # type: ignore[arg-type]  # torch types it as a tensor or a module


@check(world_sizes=(1, 2))
def check_state_of_every_kind(subject: StrategySubject) -> None:
    """Resumed after step 1 or 2, a run keeps ties, groups, buffers of any dtype and states that are not tensors."""
    by_rank = subject.run(_every_kind_or_refusal)
    refused = [each for each in by_rank if isinstance(each, str)]
    if refused:
        expect(len(refused) == len(by_rank), f"it is refused only on some ranks: {refused[0]}")
        raise NotApplicable(refused[0])
    for rank, results in enumerate(by_rank):
        assert not isinstance(results, str)
        (whole, calls), *continued = results
        for name, value in KEPT_BUFFERS.items():
            kept = whole.weights[name]
            same = kept.dtype == value.dtype and bool(torch.equal(kept.cpu(), value))
            expect(same, f"rank {rank}: buffer {name} of {value.tolist()} is {kept.tolist()} in a checkpoint")
        for after, (resumed, again) in enumerate(continued, 1):
            who = f"rank {rank}, continued after step {after}"
            expect_identical(resumed, whole, who, "the run that was never interrupted")
            expect(again == calls, f"{who}: the module's extra state is {again}, not {calls}")


def _every_kind_or_refusal(subject: StrategySubject) -> list[tuple[Trained, int]] | str:
    # The strategy may refuse the optimizer, or the 0-dim parameter.
    for counts, scalar in ((True, True), (True, False), (False, True), (False, False)):
        try:
            return _every_kind(subject, _Everything(counts=counts, scalar=scalar))
        except UsageError as error:
            refusal = str(error)
    return refusal


def _every_kind(subject: StrategySubject, recipe: Recipe) -> list[tuple[Trained, int]]:
    results = []
    for path in (None, f"{subject.folder}/after-1", f"{subject.folder}/after-2"):
        calls = _Calls()
        saves = [] if path else [SaveAfter((1, 2), subject.folder)]
        results.append((train(subject, recipe, [*saves, calls], ckpt_path=path), calls))
    return [(trained, calls.found) for trained, calls in results]


class _BegunWith(RecipeModule):
    """Begins with the weights `begins_with`."""

    begins_with: Mapping[str, Tensor] = {}

    def __init__(self, recipe: Recipe, batch_size: int) -> None:
        super().__init__(recipe, batch_size)
        self.net.load_state_dict(self.begins_with)


@dataclass
class _TakesWeights(Callback):
    """Loads only the weights of a checkpoint of a whole run, as an evaluation does."""

    path: str

    def on_train_start(self, trainer: Trainer, module: Module) -> None:
        reader = trainer.runtime.session.checkpointer.open(self.path)
        trainer.prepared.load(reader, dict(reader.state.get("prepared", {})), model_only=True)


@check(world_sizes=(2,))
def check_weights_alone(subject: StrategySubject) -> None:
    """A run that begins with only the weights of a checkpoint has nothing else of it."""
    for rank, (from_file, by_hand) in enumerate(subject.run(_from_weights)):
        expect_identical(
            from_file, by_hand, f"rank {rank}, with weights alone", "a run whose module began with them"
        )


def _from_weights(subject: StrategySubject) -> tuple[Trained, Trained]:
    before = train(subject, Recipe(steps=3), [SaveAfter((3,), subject.folder)])
    begun = type("Begun", (_BegunWith,), {"begins_with": before.weights})
    return (
        train(subject, Recipe(steps=4), [_TakesWeights(f"{subject.folder}/after-3")]),
        train(subject, Recipe(steps=4), module_class=begun),
    )


# Validation ---------------------------------------------------------------------------------------------


class _Validated(RecipeModule):
    """Keeps the inputs and outputs of validations."""

    def __init__(self, recipe: Recipe, batch_size: int) -> None:
        super().__init__(recipe, batch_size)
        self.evaluated: list[tuple[Tensor, Tensor]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores = self.recipe.predict(self.net, batch)
        self.evaluated.append((batch[0].cpu(), scores.detach().cpu()))

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Subset(self.recipe.dataset(), range(30)), 4)


VALIDATED: Mapping[str, Any] = {"module_class": _Validated, "val_check_interval": 4}
"""Validations after steps 2 and 4 of each epoch's 5."""
TRIED_FIRST: Mapping[str, Any] = {"num_sanity_val_steps": 2, "inference_mode": True}
"""A strategy that fills buffers in its first forward then fills them in an evaluation."""


@check
def check_validation_changes_nothing(subject: StrategySubject) -> None:
    """A run with validations and checkpoints is bitwise equal to one without."""
    for rank, (alone, between) in enumerate(subject.run(_with_and_without)):
        expect_identical(between, alone, f"rank {rank}, with validations", "the run without")


def _with_and_without(subject: StrategySubject) -> tuple[Trained, Trained]:
    return (
        train(subject, STATEFUL),
        train(subject, STATEFUL, [SaveAfter((7, 16), subject.folder)], **VALIDATED, **TRIED_FIRST),
    )


@dataclass
class _Saved(Callback):
    """Saves a checkpoint after some validations, and compares their outputs with those of its weights."""

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
        net.load_state_dict(net_weights(trainer, f"{self.folder}/evaluated"))
        with torch.no_grad():
            distances = [float((net(x) - scores).abs().max()) for x, scores in batches]
        self.apart.append(max(distances, default=0.0))


@check
def check_checkpoint_is_what_was_evaluated(subject: StrategySubject) -> None:
    """A validation's outputs are those of a checkpoint of that step, loaded here or in plain PyTorch."""
    close = 10 * TOLERANCES["32-true"]
    for rank, (saved, loaded) in enumerate(subject.run(_evaluated_and_saved)):
        expect(
            len(saved.evaluated) == len(saved.steps), f"rank {rank} hasn't validated after every second step"
        )
        for index, (ours, theirs) in enumerate(zip(saved.evaluated, loaded)):
            where = f"validation {index} on rank {rank}"
            expect(
                saved.apart[index] <= close,
                f"{where} has outputs that differ by {saved.apart[index]:.2g} from those of its checkpoint's weights "
                "in plain PyTorch",
            )
            expect(
                len(ours) == len(theirs) and all(map(torch.equal, ours, theirs)),
                f"{where} has other outputs than a validation of its checkpoint",
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
    """After `fit`, every rank's module has a checkpoint's parameters and buffers, as far as they aren't sharded."""
    by_rank = subject.run(_left)
    if not any(left for left, _ in by_rank):
        raise NotApplicable("no rank has full parameters or buffers after the fit")
    for rank, (left, weights) in enumerate(by_rank):
        known = {name: weights[name] for name in left}
        expect_close(left, known, 0.0, f"after the fit, rank {rank}", "a checkpoint of the last step")


@dataclass
class _IsLeftSharded(Callback):
    """Finds out whether each rank is left with its own shards after a run."""

    found: bool = False

    def on_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        self.found = trainer.prepared.leaves_module_sharded


def _left(subject: StrategySubject) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train twice; return the module's full tensors, and those saved at the end. Run by every rank."""
    # Train a second time for the checkpoint: saving may make the module equal on all ranks.
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
