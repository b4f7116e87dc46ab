"""Expectations that trainings have equal results."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stratagem_testing.checks import expect
from stratagem_testing.comparison import largest_difference
from stratagem_testing.recipe import Trained


def expect_same(ranks: Sequence[Trained], plain: Trained, tolerance: float) -> None:
    """Expect that several ranks trained the same as one process."""
    for rank, trained in enumerate(ranks):
        expect(
            trained.steps == plain.steps,
            f"rank {rank} made {trained.steps} optimizer steps, but one process {plain.steps}",
        )
        expect(
            len(trained.losses) == len(plain.losses),
            f"rank {rank} saw {len(trained.losses)} losses, but one process {len(plain.losses)}",
        )
    for step, alone in enumerate(plain.losses):
        together = sum(trained.losses[step] for trained in ranks) / len(ranks)
        expect(
            abs(together - alone) <= tolerance,
            f"the loss of micro-batch {step} is {together:.8g}, but {alone:.8g} in one process: they differ by "
            f"{abs(together - alone):.2g}, more than {tolerance:.2g}",
        )
    for rank, trained in enumerate(ranks):
        expect_close(trained.weights, plain.weights, tolerance, f"rank {rank}")
        expect_close(
            {"the trained net's output": trained.outputs},
            {"the trained net's output": plain.outputs},
            10 * tolerance,
            f"rank {rank}",
        )
        expect(
            trained.rates == plain.rates, f"rank {rank} had learning rates {trained.rates[-3:]} at the end"
        )


def expect_identical(ours: Trained, theirs: Trained, who: str, whom: str) -> None:
    """Expect that a run's results are bitwise equal to the last steps of another run."""
    losses, rates = theirs.losses[-len(ours.losses) :], theirs.rates[-len(ours.rates) :]
    expect(ours.steps == theirs.steps, f"{who}, makes {ours.steps} optimizer steps, not {theirs.steps}")
    expect(
        len(ours.losses) == len(losses),
        f"{who}, sees {len(ours.losses)} losses, but {whom} {len(losses)}",
    )
    for index, (loss, other) in enumerate(zip(ours.losses, losses), len(theirs.losses) - len(losses)):
        expect(
            loss == other,
            f"{who}: the loss of micro-batch {index} is {loss!r}, but {other!r} in {whom}",
        )
    expect(ours.rates == rates, f"{who}, has learning rates {ours.rates[-3:]}, not {rates[-3:]}")
    expect_close(ours.weights, theirs.weights, 0.0, who, whom)


def expect_close(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float, who: str, whom: str = "one process"
) -> None:
    """Expect the same names, shapes and, within a tolerance, values."""
    expect(ours.keys() == theirs.keys(), f"{who} has {sorted(ours)} in its checkpoint, not {sorted(theirs)}")
    for name, value in ours.items():
        other = theirs[name].to(value.dtype)
        expect(value.shape == other.shape, f"{who} has {name} in shape {tuple(value.shape)}")
        apart = largest_difference(value, other)
        expect(
            apart <= tolerance,
            f"{who}: {name} is {apart:.2g} away from that of {whom}, more than {tolerance:.2g}",
        )
