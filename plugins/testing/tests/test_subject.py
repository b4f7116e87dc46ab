"""What a subject says of a check, and of a check at one world size alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from averaging import Averaging
from stratagem_testing import StrategySubject
from stratagem_testing.subject import TOLERANCES

SUBJECT = StrategySubject(
    Averaging,
    options={"period": 1},
    options_for={"save_and_load": {"period": 3}, "save_and_load-4": {"period": 5}, "parity-2": {"period": 2}},
    tolerances={"bf16-mixed": 0.5},
    tolerances_for={"parity": {"32-true": 0.1}, "parity-4": {"32-true": 0.2, "bf16-mixed": 0.6}},
)


@pytest.mark.parametrize(
    ("check", "world_size", "tolerance", "mixed", "period"),
    [
        ("optimizers", 4, TOLERANCES["32-true"], 0.5, 1),
        ("parity", 1, 0.1, 0.5, 1),
        ("parity", 2, 0.1, 0.5, 2),
        ("parity", 4, 0.2, 0.6, 1),
        ("save_and_load", 2, TOLERANCES["32-true"], 0.5, 3),
        ("save_and_load", 4, TOLERANCES["32-true"], 0.5, 5),
    ],
)
def test_what_is_nearer_goes_first(
    check: str, world_size: int, tolerance: float, mixed: float, period: int
) -> None:
    subject = replace(SUBJECT, check=check, world_size=world_size)
    assert (subject.tolerance(), subject.tolerance("bf16-mixed")) == (tolerance, mixed)
    assert subject._options() == {"period": period}
