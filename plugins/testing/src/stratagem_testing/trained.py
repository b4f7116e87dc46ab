"""Train a recipe under a strategy, and compare the result with plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.loops.optimizers import takes_metric
from stratagem_trainer.module.module import Module
from torch import Tensor
from torch.utils.data import DataLoader

from stratagem_testing.checks import ConformanceError
from stratagem_testing.first_difference import naming_first_difference
from stratagem_testing.recipe import Recipe, Trained, train_plainly
from stratagem_testing.record import Recorder, gather_whole
from stratagem_testing.reference import rates_of
from stratagem_testing.same import expect_same
from stratagem_testing.subject import StrategySubject
from stratagem_testing.workers import RankError, shared_workers

if TYPE_CHECKING:
    from stratagem_trainer.trainer import Trainer
    from torch.optim import Optimizer


MONITORED = "epoch_loss"


class RecipeModule(Module):
    """A module that trains a recipe with the trainer.

    Args:
        recipe: what to train.
        batch_size: samples per micro-batch and rank.
    """

    def __init__(self, recipe: Recipe, batch_size: int) -> None:
        super().__init__()
        self.recipe, self.batch_size = recipe, batch_size
        self.net = recipe.net()
        self.automatic_optimization = not recipe.manual

    index = 0
    """Index of the micro-batch in the whole training."""
    replaced: Callable[[Optimizer], Optimizer] | None = None
    """Replaces each of the recipe's optimizers."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if self.recipe.manual:
            optimizers = self.optimizers()
            stepped = optimizers if isinstance(optimizers, list) else [optimizers]
            return self.recipe.manual_step(self.net, batch, stepped, self.manual_backward)
        loss = None if self.recipe.skips(self.index) else self.recipe.loss(self.net, batch)
        if self.recipe.monitored and loss is not None:
            self.log(MONITORED, loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.recipe.predict(self.net, batch)

    def configure_optimizers(self) -> Any:
        optimizers: Sequence[Optimizer] = self.recipe.stepped_by(self.net, self.replaced)
        schedules = [
            {
                "scheduler": scheduler,
                "interval": interval,
                "monitor": MONITORED if takes_metric(scheduler) else None,
            }
            for scheduler, interval in self.recipe.schedules(optimizers)
        ]
        return list(optimizers), schedules

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(
            self.recipe.dataset(), self.batch_size, shuffle=True, collate_fn=self.recipe.collate
        )


class Record(Recorder):
    """Records losses and learning rates, and the trained net's outputs and weights."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"{folder}/trained")
        self.rates: list[list[float]] = []
        self.outputs = torch.empty(0)

    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        assert isinstance(module, RecipeModule)
        module.index = len(self.losses)
        module.recipe.before_batch(module.net, module.index)

    def on_train_batch_end(
        self, trainer: Trainer, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)
        if trainer.global_step > self.steps:
            self.steps = trainer.global_step
            self.rates.append(rates_of(trainer.prepared.optimizers))

    def read_weights(self, trainer: Trainer) -> dict[str, Tensor]:
        return net_weights(trainer, f"{self.path}-weights")

    def on_end(self, trainer: Trainer, module: Module, stage: str) -> None:
        super().on_end(trainer, module, stage)
        assert isinstance(module, RecipeModule)
        recipe = module.recipe
        first = recipe.collate([recipe.dataset()[index] for index in range(8)])
        module.eval()
        with torch.no_grad():
            for batch in trainer.prepared.dataloader([first]):
                self.outputs = trainer.prepared.evaluate("predict_step", batch, 0).cpu()

    def trained(self) -> Trained:
        """Return the result. A micro-batch without a loss has the loss 0."""
        losses = [0.0 if loss is None else loss for loss in self.losses]
        return Trained(
            weights=self.weights, steps=self.steps, losses=losses, outputs=self.outputs, rates=self.rates
        )


def net_weights(trainer: Trainer, path: str) -> dict[str, Tensor]:
    """Return the full parameters and buffers of the module's `net` by name. Collective."""
    tensors = trainer.prepared.model_tensors()
    return gather_whole(trainer.runtime.session.checkpointer, tensors, path, "model/net.")


def module_of(
    subject: StrategySubject, recipe: Recipe, module_class: type[RecipeModule] = RecipeModule
) -> RecipeModule:
    """Return a module that trains `recipe` with the optimizers of `subject`."""
    module = module_class(recipe, batch_size(subject, recipe))
    module.replaced = subject.optimizer
    return module


def batch_size(subject: StrategySubject, recipe: Recipe) -> int:
    """Return the number of samples of a micro-batch on each rank."""
    return recipe.global_batch // recipe.accumulate // subject.shares()


def train(
    subject: StrategySubject,
    recipe: Recipe,
    callbacks: Sequence[Callback] = (),
    ckpt_path: str | None = None,
    module_class: type[RecipeModule] | None = None,
    **settings: Any,
) -> Trained:
    """Train a recipe under the strategy. Run by every rank."""
    module = module_of(subject, recipe, module_class or RecipeModule)
    record = Record(subject.folder)
    settings = {"max_steps": recipe.steps, "max_epochs": recipe.epochs, **settings}
    clip = recipe.max_norm if recipe.max_value is None else recipe.max_value
    trainer = subject.trainer(
        callbacks=[*callbacks, record],
        accumulate_grad_batches=recipe.accumulate,
        gradient_clip_val=clip,
        gradient_clip_algorithm="norm" if recipe.max_value is None else "value",
        precision=recipe.precision,
        **settings,
    )
    trainer.fit(module, ckpt_path=ckpt_path)
    return record.trained()


def expect_parity(subject: StrategySubject, *recipes: Recipe, factor: float = 1.0) -> None:
    """Train each recipe under the strategy and in plain torch, and expect the same results.

    Args:
        subject: the strategy.
        recipes: what to train, one after the other in the same processes.
        factor: factor on the tolerance, for optimizers that magnify rounding errors.
    """
    by_rank = subject.run(train_each, recipes)
    for index, recipe in enumerate(recipes):
        ranks = [trained[index] for trained in by_rank]
        expect_plain(subject, ranks, recipe, factor=factor)


def expect_plain(
    subject: StrategySubject,
    ranks: Sequence[Trained],
    recipe: Recipe,
    *,
    factor: float = 1.0,
    plain: Recipe | None = None,
    train: Callable[..., Trained] = train,
) -> None:
    """Expect that ranks trained the same as plain torch. A failure names the first difference.

    Args:
        subject: the strategy.
        ranks: result of the training on each rank.
        recipe: the recipe that the ranks trained.
        factor: factor on the tolerance, for optimizers that magnify rounding errors.
        plain: the recipe for plain torch; by default the same.
        train: `train(subject, recipe, callbacks)` trained it; run by every rank.
    """
    plain = plain or recipe
    with naming_first_difference(subject, recipe, plain, train), naming(recipe):
        expect_same(ranks, plainly_for(subject, plain), subject.tolerance(recipe.precision) * factor)


def expect_parity_or_refusal(subject: StrategySubject, recipe: Recipe, refusal: type[Exception]) -> None:
    """Expect the results of plain torch, or an error of a class on any rank, and no hang.

    Args:
        subject: the strategy.
        recipe: what to train.
        refusal: the class of the error.
    """
    try:
        expect_parity(subject, recipe)
    except RankError as error:
        if not isinstance(error.error, refusal):
            raise


def train_each(subject: StrategySubject, recipes: Sequence[Recipe]) -> list[Trained]:
    """Train several recipes, one after the other. Run by every rank."""
    return [train(subject, recipe) for recipe in recipes]


@contextmanager
def naming(recipe: object) -> Iterator[None]:
    """Add the recipe's name to a failure's message."""
    try:
        yield
    except ConformanceError as error:
        raise ConformanceError(
            f"{error} (tried with {described(recipe)})" if recipe is not None else str(error)
        ) from None


def described(recipe: object) -> str:
    """Return the name of a recipe with the fields that differ from their defaults."""
    if not is_dataclass(recipe):
        return str(recipe)
    own = {field.name: getattr(recipe, field.name) for field in fields(recipe) if field.repr}
    usual = {field.name: field.default for field in fields(recipe)}
    settings = ", ".join(f"{name}={value!r}" for name, value in own.items() if value != usual[name])
    return f"{type(recipe).__name__.lstrip('_')}({settings})"


@lru_cache(maxsize=64)
def plainly(recipe: Recipe, shares: int, replaced: Callable[[Optimizer], Optimizer] | None = None) -> Trained:
    """Train a recipe in plain torch, in another process."""
    trained: Trained = shared_workers().run(1, train_plainly, recipe, shares, None, replaced)[0]
    return trained


def plainly_for(subject: StrategySubject, recipe: Recipe) -> Trained:
    """Train a recipe in plain torch, with the optimizers of `subject`."""
    return plainly(recipe, subject.shares(), subject.optimizer)
