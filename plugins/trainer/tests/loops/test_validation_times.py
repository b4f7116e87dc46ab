"""When a fit validates, case by case, and what comes before its first validation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from stratagem_trainer.loops.validation_times import ValidationTimes
from stratagem_trainer.loops.validations import Validations
from stratagem_trainer.stage.progress import Progress

from stratagem.errors import ConfigError


def times(interval: Any, every: int | None, num_batches: int | None = 10, **progress: int) -> ValidationTimes:
    settings = SimpleNamespace(val_check_interval=interval, check_val_every_n_epoch=every)
    return ValidationTimes(settings, Progress(**progress), num_batches)  # type: ignore[arg-type]  # the two that matter


@pytest.mark.parametrize(
    ("interval", "every", "progress", "due", "due_at_the_end", "due_at_a_stop"),
    [
        # At the end of each epoch.
        (None, 1, {"batch": 4}, False, True, True),
        (None, 1, {"batch": 10, "validated": 10}, False, False, False),
        (None, 1, {"batch": 10, "validated": 4}, False, True, True),
        (None, 1, {"epoch": 5, "batch": 4}, False, True, True),
        # After each 3 batches of an epoch.
        (3, 1, {"batch": 2}, False, False, True),
        (3, 1, {"batch": 3}, True, False, True),
        (3, 1, {"batch": 3, "validated": 3}, False, False, False),
        (3, 1, {"batch": 5, "validated": 3}, False, False, True),
        (3, 1, {"batch": 6, "validated": 3}, True, False, True),
        (3, 1, {"batch": 7, "validated": 5}, True, False, True),
        (3, 1, {"batch": 8, "validated": 7}, False, False, True),
        # Batches of the epochs before don't count.
        (3, 1, {"epoch": 1, "batch": 2, "batches_before": 10}, False, False, True),
        (3, 1, {"epoch": 1, "batch": 3, "batches_before": 10}, True, False, True),
        # They do where the interval goes over epochs.
        (3, None, {"epoch": 1, "batch": 2, "batches_before": 10}, True, False, True),
        (3, None, {"epoch": 1, "batch": 1, "batches_before": 10}, False, False, True),
        (3, None, {"epoch": 1, "batch": 3, "validated": 2, "batches_before": 10}, False, False, True),
        (3, None, {"epoch": 1, "batch": 5, "validated": 2, "batches_before": 10}, True, False, True),
        (25, None, {"epoch": 2, "batch": 4, "batches_before": 20}, False, False, True),
        (25, None, {"epoch": 2, "batch": 5, "batches_before": 20}, True, False, True),
        # In each second epoch.
        (None, 2, {"epoch": 0, "batch": 10}, False, False, False),
        (None, 2, {"epoch": 1, "batch": 10}, False, True, True),
        (None, 2, {"epoch": 2, "batch": 10}, False, False, False),
        (None, 2, {"epoch": 3, "batch": 10}, False, True, True),
        (5, 2, {"epoch": 0, "batch": 5}, False, False, False),
        (5, 2, {"epoch": 1, "batch": 5}, True, False, True),
        (None, 3, {"epoch": 1, "batch": 10}, False, False, False),
        (None, 3, {"epoch": 2, "batch": 10}, False, True, True),
        # A fraction of an epoch.
        (0.25, 1, {"batch": 2}, True, False, True),
        (0.25, 1, {"batch": 1}, False, False, True),
        (0.01, 1, {"batch": 1}, True, False, True),
        (1.0, 1, {"batch": 9}, False, False, True),
        (1.0, 1, {"batch": 10}, True, False, True),
    ],
)
def test_what_is_due(
    interval: Any,
    every: int | None,
    progress: dict[str, int],
    due: bool,
    due_at_the_end: bool,
    due_at_a_stop: bool,
) -> None:
    found = times(interval, every, **progress)
    assert (found.is_due(), found.is_due_at_the_end(), found.is_due_at_a_stop()) == (
        due,
        due_at_the_end,
        due_at_a_stop,
    )


def test_an_interval_that_an_epoch_does_not_have() -> None:
    with pytest.raises(ConfigError, match="val_check_interval=11 is more than the 10 batches"):
        times(11, 1)
    assert not times(10, 1, batch=9).is_due()
    assert times(11, None, batch=11).is_due()
    assert times(11, 1, num_batches=None, batch=11).is_due()


class Guard:
    def __init__(self) -> None:
        self.compared: list[str] = []

    def compare_last_steps(self, when: str) -> None:
        self.compared.append(when)


def state(**progress: int) -> Any:
    settings = SimpleNamespace(val_check_interval=3, check_val_every_n_epoch=1)
    return SimpleNamespace(settings=settings, progress=Progress(**progress), guard=Guard())


def test_ranks_are_compared_before_the_first_validation_alone() -> None:
    its, validated = state(), []
    validations = Validations(its, lambda: validated.append(its.progress.batch), 10)

    def run(**progress: int) -> None:
        vars(its.progress).update(progress)
        validations.run_if_due()

    run(batch=2)
    assert (validated, its.guard.compared, validations.is_due()) == ([], [], False)
    run(batch=3)
    assert (validated, its.guard.compared) == ([3], ["before the first validation"])
    run(batch=6, validated=3)
    assert (validated, its.guard.compared) == ([3, 6], ["before the first validation"])


def test_the_end_of_an_epoch_and_a_stop() -> None:
    its, validated = state(batch=4, validated=3), []
    validations = Validations(its, lambda: validated.append("run"), 10)
    validations.run_at_an_end(False)
    assert validated == []
    validations.run_at_an_end(True)
    assert validated == ["run"]


def test_a_fit_without_a_validation_never_validates() -> None:
    validations = Validations(state(batch=3), None, 2)
    assert not validations.is_due()
    validations.run_if_due()
    validations.run_at_an_end(True)


def test_epochs_of_another_length_are_counted_again() -> None:
    its = state()
    its.settings.val_check_interval = 0.5
    validations = Validations(its, lambda: None, 10)
    its.progress.batch = 2
    assert not validations.is_due()
    validations.count_batches(4)
    assert validations.is_due()
