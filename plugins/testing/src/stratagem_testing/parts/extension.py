"""Checks for every extension."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from stratagem.sdk.catalogue import load_catalogue
from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.parts.subject import ExtensionSubject

if TYPE_CHECKING:
    from stratagem import Runtime


def _made(subject: ExtensionSubject) -> Any:
    return subject.load()()


@check(world_sizes=(1,))
def check_made(subject: ExtensionSubject) -> None:
    """It is made without arguments, implements only hooks that exist, and can be pickled for workers."""
    extension = _made(subject)
    expect(type(pickle.loads(pickle.dumps(extension))) is type(extension), "it isn't the same after pickling")
    subject.alone(_open_a_run)


def _runtime(subject: ExtensionSubject) -> Runtime:
    from stratagem import Runtime

    return Runtime("single", accelerator="cpu", plugins=[_made(subject)], run_dir=subject.folder)


def _open_a_run(subject: ExtensionSubject) -> None:
    # Making a run refuses hooks that don't exist, and methods that are named like hooks without the decorator.
    _runtime(subject).launch(_nothing, quiet=True)


def _nothing(runtime: Runtime) -> None:
    pass


@check(world_sizes=(1,), in_worker=True)
def check_changes_nothing(subject: ExtensionSubject) -> None:
    """A run with it is bitwise equal to one without, unless its subject has `changes_numbers`."""
    from stratagem_testing.recipe import Recipe
    from stratagem_testing.same import expect_identical
    from stratagem_testing.subject import StrategySubject
    from stratagem_testing.trained import train

    if subject.changes_numbers:
        raise NotApplicable("its subject says that it changes numbers")
    single = StrategySubject("single", folder=subject.folder)
    recipe = Recipe(steps=6, accumulate=2, max_norm=0.05)
    alone = train(single, recipe)
    extended = train(single, recipe, plugins=[_made(subject)])
    expect_identical(extended, alone, "the run with it", "the run without")


@check(world_sizes=(2,))
def check_ranks_agree(subject: ExtensionSubject) -> None:
    """Two ranks have bitwise equal weights, also if resumed from a checkpoint of the same run."""
    if "ddp" not in load_catalogue().names("strategy"):
        raise NotApplicable("stratagem-ddp isn't installed: pip install stratagem-ddp")
    from stratagem_testing.same import expect_close, expect_identical

    (first, first_again), (second, second_again) = subject.run(_train_and_continue)
    expect_close(second.weights, first.weights, 0.0, "rank 1", "rank 0")
    for rank, (whole, again) in enumerate(((first, first_again), (second, second_again))):
        expect_identical(again, whole, f"rank {rank}, continued", "the run that was never interrupted")


def _train_and_continue(subject: ExtensionSubject) -> tuple[Any, Any]:
    from stratagem_testing.recipe import Recipe
    from stratagem_testing.strategies.consistency import SaveAfter
    from stratagem_testing.subject import StrategySubject
    from stratagem_testing.trained import train

    ddp = StrategySubject("ddp", world_size=2, folder=subject.folder)
    saves = SaveAfter((3,), subject.folder)
    whole = train(ddp, Recipe(steps=6), [saves], plugins=[_made(subject)])
    return whole, train(ddp, Recipe(steps=6), ckpt_path=f"{subject.folder}/after-3", plugins=[_made(subject)])


@check(world_sizes=(1,))
def check_errors_pass(subject: ExtensionSubject) -> None:
    """An error in the loop of a run with it is raised unchanged."""
    found = subject.alone(_raise_in_a_run)
    expect(found == "ArithmeticError: cursed", f"an ArithmeticError of the loop is raised as {found}")


def _raise_in_a_run(subject: ExtensionSubject) -> str:
    try:
        _runtime(subject).launch(_fail, quiet=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _fail(runtime: Runtime) -> None:
    import torch

    # An extension may select layers by class: use those of the recipe's model.
    net = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Tanh())
    runtime.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    raise ArithmeticError("cursed")
