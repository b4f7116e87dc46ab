"""Checks for every axis, alone and combined with each other installed axis."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from stratagem.errors import UsageError
from stratagem.sdk.catalogue import load_catalogue
from stratagem_testing.checks import ConformanceError, NotApplicable, check, expect
from stratagem_testing.parts.subject import AxisSubject
from stratagem_testing.workers import RankError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stratagem_testing.recipe import Recipe, Trained
    from stratagem_testing.subject import StrategySubject

COMPOSITION = "composition"
"""Name of the strategy that combines axes."""


@check(world_sizes=(1,))
def check_declares(subject: AxisSubject) -> None:
    """It is an Axis with complete declarations, has its component's name, and is made with a size."""
    from stratagem.sdk.axes import Axis
    from stratagem.sdk.catalogue import FEATURES

    axis = subject.make(2)
    expect(isinstance(axis, Axis), f"it is a {type(axis).__name__}, not an Axis")
    expect(axis.size == 2, f"it was made with 2 ranks, but its size is {axis.size!r}")
    missing = [
        name
        for name in ("name", "mesh_order", "setup_order", "reads_same_batches", "sends")
        if not hasattr(axis, name)
    ]
    expect(not missing, f"it doesn't declare {', '.join(missing)}")
    if isinstance(subject.part, str):
        expect(
            axis.name == subject.part,
            f"its component is called {subject.part!r}, but its class {axis.name!r}",
        )
    expect(len(axis.sends.split()) > 1, f"its text `sends` for the plan is too short: {axis.sends!r}")
    expect(
        axis.lacks <= FEATURES.keys(),
        f"it lacks {sorted(axis.lacks - FEATURES.keys())}, which are not features",
    )
    expect(not axis.excludes.keys() & {axis.name}, "it excludes itself")


@check(world_sizes=(2,))
def check_alone(subject: AxisSubject) -> None:
    """On two ranks, losses, weights and outputs are those of one process, with accumulation and clipping."""
    from stratagem_testing.trained import expect_parity

    expect_parity(_composed(subject), *_recipes(subject))


@check(world_sizes=(2,))
def check_weighs(subject: AxisSubject) -> None:
    """Weighted losses are divided by the weights of all ranks; or they are refused with the name of the axis."""
    from stratagem_testing.strategies.weighted_losses import check_weighted_losses

    _or_refused_naming(subject, lambda: check_weighted_losses(_composed(subject)))


@check(world_sizes=(2,))
def check_saves_whole(subject: AxisSubject) -> None:
    """Its checkpoints are full: resumed on the axis and in one process, training has one process's results."""
    from stratagem_testing.subject import StrategySubject

    composed = _composed(subject)
    (recipe, *_) = _recipes(subject)
    path = f"{subject.folder}/saved"
    composed.run(_save, recipe, path)
    single = StrategySubject("single", world_size=1, folder=subject.folder)
    for other, how in ((composed, "on the axis"), (single, "in one process")):
        _expect_continued(other, recipe, other.run(_continue, recipe, path), how)


@check(world_sizes=(4,))
def check_beside_others(subject: AxisSubject) -> None:
    """Combined with each other installed axis, it trains as one process; or an error names both axes."""
    others = [each for each in _installed() if each.name != subject.make(2).name]
    if not others:
        raise NotApplicable("no other axis is installed")
    from stratagem_testing.trained import expect_parity

    for other in others:
        composed = _composed(subject, other)
        try:
            expect_parity(composed, *_recipes(subject, other))
        except ConformanceError as error:
            raise ConformanceError(f"combined with axis {other.name!r}: {error}") from None
        except (RankError, UsageError) as error:
            refusal = error.error if isinstance(error, RankError) else error
            names = (subject.make(2).name, other.name)
            if not isinstance(refusal, UsageError) or not all(repr(name) in str(refusal) for name in names):
                raise


def _installed() -> list[AxisSubject]:
    """Return subjects of all installed axes: their own, or subjects made from their names."""
    from stratagem.sdk.catalogue import imported

    found = []
    for component in load_catalogue().of_kind("axis"):
        own = imported(component.conformance) if component.conformance else AxisSubject(component.name)
        found.append(own)
    return found


def _composed(*subjects: AxisSubject) -> StrategySubject:
    """Return a strategy's subject that combines two ranks along each axis."""
    from stratagem_testing.subject import StrategySubject

    if COMPOSITION not in load_catalogue().names("strategy"):
        raise NotApplicable("no strategy that combines axes is installed: pip install 'stratagem[mesh]'")
    axes = [subject.make(2) for subject in subjects]
    parts = prod(axis.size for axis in axes if not axis.reads_same_batches)
    return StrategySubject(
        COMPOSITION,
        options={"timeout_s": 60, "axes": axes},
        data_ranks=partial(_parts, parts),
        world_size=subjects[0].world_size,
        folder=subjects[0].folder,
    )


def _parts(parts: int, world_size: int) -> int:
    return parts


def _recipes(*subjects: AxisSubject) -> Sequence[Recipe]:
    from stratagem_testing.recipe import Recipe

    made = next((subject.recipe for subject in subjects if subject.recipe is not None), Recipe)
    # If clipping has an effect in each step, a norm that counts something twice or not at all shows. Without
    # clipping, a wrong scale of gradients shows.
    max_norm = 0.05 if "norm_clipping" in _composed(*subjects).features else None
    return made(steps=10), made(steps=10, accumulate=2, max_norm=max_norm)


def _or_refused_naming(subject: AxisSubject, trial: Callable[[], None]) -> None:
    name = subject.make(2).name
    try:
        trial()
    except NotApplicable as refused:
        expect(
            repr(name) in str(refused),
            f"it is refused without the name of axis {name!r}: {refused}",
        )


def _save(subject: StrategySubject, recipe: Recipe, path: str) -> None:
    from stratagem_testing.strategies.consistency import SaveAfter
    from stratagem_testing.trained import train

    train(subject, recipe, [SaveAfter((_half(recipe),), path)])


def _continue(subject: StrategySubject, recipe: Recipe, path: str) -> Trained:
    from stratagem_testing.trained import train

    return train(subject, recipe, ckpt_path=f"{path}/after-{_half(recipe)}")


def _half(recipe: Recipe) -> int:
    assert recipe.steps is not None
    return recipe.steps // 2


def _expect_continued(subject: StrategySubject, recipe: Recipe, ranks: list[Trained], how: str) -> None:
    from stratagem_testing.same import expect_same
    from stratagem_testing.trained import plainly

    plain, half = plainly(recipe, subject.shares()), _half(recipe)
    whole = [
        replace(each, losses=[*plain.losses[:half], *each.losses[-half:]], rates=plain.rates)
        for each in ranks
    ]
    try:
        expect_same(whole, plain, subject.tolerance())
    except ConformanceError as error:
        raise ConformanceError(f"resumed {how}: {error}") from None
