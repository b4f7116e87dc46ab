"""Every check of a part fails where it should, and by what."""

from __future__ import annotations

import pytest
import wrong_axes  # noqa: F401
import wrong_other_parts  # noqa: F401  # plants its faults, as does the other
import wrong_parts  # noqa: F401
from planting import FAULTS, Fault
from stratagem_testing.parts import PART_CHECKS

PLANTED = [fault for fault in FAULTS if fault.kind != "strategy"]
TAKES_PROCESSES = ("launcher", "checkpoint", "extension", "logger", "place", "axis")
"""Kinds of which the check alone is tried, and none that it builds on."""


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: f"{fault.kind}-{fault.name}")
def test_a_wrong_part_is_caught_by_exactly_its_check(fault: Fault) -> None:
    names = [check.name for check in PART_CHECKS[fault.kind]]
    for earlier in () if fault.kind in TAKES_PROCESSES else names[: names.index(fault.check)]:
        outcome = fault.run_check(earlier)
        assert outcome.verdict in ("passed", "skipped"), outcome.reason
    outcome = fault.run_check()
    assert outcome.verdict == "failed"
    assert fault.words in outcome.reason


def test_every_check_has_a_wrong_part() -> None:
    checks = {(kind, check.name) for kind, checks in PART_CHECKS.items() for check in checks}
    # Planted in an asynchronous device by plugins/sim/tests/test_wrong_accelerators.py.
    elsewhere = {
        ("accelerator", name) for name in ("synchronizes", "streams", "recorded_memory", "event_times")
    }
    assert checks - elsewhere == {(fault.kind, fault.check) for fault in PLANTED}
