"""Several stages in the same processes, as under torchrun, and what they leave in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stratagem import Prepared
from stratagem.errors import CombinationError
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.left_over import count_held, expect_nothing_left
from stratagem_testing.recipe import Recipe, train_plainly
from stratagem_testing.same import expect_close
from stratagem_testing.subject import StrategySubject
from stratagem_testing.trained import Record, module_of
from stratagem_testing.workers import shared_workers


@dataclass(frozen=True)
class _Short(Recipe):
    steps: int | None = 4


_RECIPE = _Short()


def _in_a_row(subject: StrategySubject, recipe: Recipe) -> dict[str, Any] | str:
    """Fit, predict and fit. Run by every rank."""
    module = module_of(subject, recipe)
    subject.trainer(max_steps=recipe.steps).fit(module)
    record = Record(subject.folder)
    try:
        predicted = subject.trainer().predict(module, module.train_dataloader())
    except CombinationError as error:
        return str(error)
    again = subject.trainer(max_steps=recipe.steps, callbacks=[record])
    again.fit(module)
    outputs = torch.cat([each.cpu() for each in predicted]) if predicted else None
    return {"losses": record.trained().losses, "weights": record.weights, "outputs": outputs}


def _plainly(recipe: Recipe, subject: StrategySubject) -> dict[str, Any]:
    net, shares = recipe.net(), subject.shares()
    train_plainly(recipe, shares, net, subject.optimizer)
    data = recipe.dataset()
    with torch.no_grad():
        outputs = recipe.predict(net, recipe.collate([data[index] for index in range(recipe.samples)]))
    again = train_plainly(recipe, shares, net, subject.optimizer)
    return {"losses": again.losses, "weights": again.weights, "outputs": outputs}


@check(world_sizes=(1, 2))
def check_stages_in_a_row(subject: StrategySubject) -> None:
    """A fit, a prediction and a fit of one module in the same processes each continue with the trained weights."""
    check_of(subject, _RECIPE)


def check_of(subject: StrategySubject, recipe: Recipe, may_refuse: bool = True) -> None:
    """Expect of a recipe what `check_stages_in_a_row` claims."""
    ranks = subject.run(_in_a_row, recipe)
    if isinstance(ranks[0], str):
        expect(
            may_refuse and all(isinstance(each, str) and "since the run before" in each for each in ranks),
            f"a second stage was refused only on some ranks, or for another reason: {ranks[0]}",
        )
        raise NotApplicable(ranks[0])
    plain = shared_workers().run(1, _plainly, recipe, subject)[0]
    tolerance = subject.tolerance()
    outputs = [each["outputs"] for each in ranks if each["outputs"] is not None]
    expect(bool(outputs), "no rank got the predictions")
    expect_close({"a prediction": outputs[0]}, {"a prediction": plain["outputs"]}, 10 * tolerance, "rank 0")
    for rank, trained in enumerate(ranks):
        expect_close(trained["weights"], plain["weights"], tolerance, f"after the second fit, rank {rank}")


# What is freed --------------------------------------------------------------------------------------------


@check(world_sizes=(1, 2))
def check_lets_go(subject: StrategySubject) -> None:
    """After a run, everything that it made is freed: modules, tensors, `Prepared`, threads and open files."""
    for held in subject.run(_held_after_runs):
        expect_nothing_left(held, "run")


def _held_after_runs(subject: StrategySubject) -> list[dict[str, int]]:
    """Train several times. Run by every rank."""
    held = []
    for _ in range(4):
        subject.trainer(max_steps=1).fit(module_of(subject, _RECIPE))
        held.append(
            count_held(modules=nn.Module, tensors=Tensor, optimizers=Optimizer, prepared_modules=Prepared)
        )
    return held
