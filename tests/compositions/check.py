"""What every composition is held against: plain PyTorch in one process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from mesh_subjects import composition
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Trained
from stratagem_testing.trained import plainly, train, train_each
from stratagem_testing.workers import RankError
from tensor_models import SaveAt, go_on

from stratagem.errors import UsageError
from tests.compositions.model import CUT, PLAN, Task

AXES = ("pipeline", "replicate", "shard", "context", "expert", "tensor")
"""In the order of the mesh."""
SAME_BATCHES = ("pipeline", "context", "tensor")
HALF = 3


@dataclass(frozen=True)
class Check:
    """One thing that a composition has to do as one process does."""

    name: str
    what: str
    """For the page."""
    recipe: Task
    tolerance: float
    """The largest difference of a weight; 0 is equality to the last bit."""
    how: str = "trained"
    """"trained", or "resumed": continued from a checkpoint of its own, held against the run that wrote it; or
    "single": continued in one process."""


CHECKS = (
    # A wrong scale of gradients shows where nothing is clipped, and a wrong norm where clipping always bites.
    Check("sgd", "SGD with momentum, 10 steps", Task(steps=10), 1e-6),
    Check(
        "clipped",
        "clipped by norm, two micro-batches in a step",
        Task(steps=6, max_norm=0.1, accumulate=2),
        1e-6,
    ),
    Check("adamw", "AdamW", Task(steps=6, kind="foreach"), 2e-5),
    Check("whole matrices", "an optimizer as Shampoo", Task(steps=6, kind="whitening"), 1e-5),
    Check("bf16-mixed", "bf16-mixed", Task(steps=6, max_norm=0.1, precision="bf16-mixed"), 1e-3),
    Check(
        "resumed",
        "continued from its checkpoint, bit for bit",
        Task(steps=2 * HALF, kind="foreach"),
        0,
        "resumed",
    ),
    Check(
        "in one process",
        "its checkpoint continued in one process",
        Task(steps=2 * HALF, kind="foreach"),
        2e-5,
        "single",
    ),
)


def subject_of(axes: tuple[str, ...]) -> StrategySubject:
    """Return the composition of two ranks along each axis."""
    parts = 2 ** sum(axis not in SAME_BATCHES for axis in axes)
    options: dict[str, Any] = {}
    if "context" in axes:
        options["context"] = {"parallelize": {f"net.{name}": style for name, style in CUT.items()}}
    plan = {f"net.{name}": style for name, style in PLAN.items()}
    expression = "+".join(f"{axis}=2" for axis in axes)
    return composition(expression, parts, plan, **options).at(2 ** len(axes))


def train_and_save(subject: StrategySubject, recipe: Task, step: int, path: str) -> Trained:
    """Train to the end, and save a checkpoint on the way. Run by every rank."""
    return train(subject, recipe, [SaveAt(step, path)])


def results(axes: tuple[str, ...]) -> Iterator[tuple[Check, str, float | None]]:
    """Yield each check, and its refusal or "" with the largest difference of a weight."""
    folder = tempfile.mkdtemp(prefix="stratagem-compositions-")
    try:
        subject = replace(subject_of(axes), folder=folder)
        for check in CHECKS:
            try:
                recipe = replace(check.recipe, in_sequence="pipeline" in axes)
                yield check, "", _difference(subject, replace(check, recipe=recipe))
            except (RankError, UsageError) as error:
                refusal = error.error if isinstance(error, RankError) else error
                if not isinstance(refusal, UsageError):
                    raise  # an error that isn't ours ends the comparison
                yield check, str(refusal), None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _difference(subject: StrategySubject, check: Check) -> float:
    recipe = check.recipe
    if check.how == "trained":
        ours = [ranks for (ranks,) in subject.run(train_each, [recipe])]
        return largest(ours, plainly(recipe, subject.shares()))
    path = f"{subject.folder}/{check.how}"
    whole = subject.run(train_and_save, recipe, HALF, path)
    if check.how == "resumed":
        return largest(subject.run(go_on, recipe, path), whole[0])
    single = StrategySubject("single", world_size=1, folder=subject.folder)
    return largest(single.run(go_on, recipe, path), plainly(recipe, 1))


def largest(ranks: list[Trained], expected: Trained) -> float:
    """Return the largest difference of a weight on any rank."""
    differences: Callable[[Trained], Iterator[float]] = lambda trained: (  # noqa: E731
        float((value.double() - expected.weights[name].double()).abs().max())
        for name, value in _named(trained.weights, expected.weights)
    )
    return max(max(differences(trained)) for trained in ranks)


def _named(
    weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    assert weights.keys() == expected.keys(), weights.keys() ^ expected.keys()
    return iter(weights.items())
