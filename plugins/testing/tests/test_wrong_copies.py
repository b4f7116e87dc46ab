"""Copies of our own strategies that do one thing wrong are caught, too."""

from __future__ import annotations

import pytest
import wrong_copies  # noqa: F401  # plants its faults
from planting import Fault, faults_of

pytestmark = pytest.mark.long


@pytest.mark.parametrize("fault", faults_of("copies"), ids=lambda fault: fault.name)
def test_a_wrong_copy_is_caught(fault: Fault) -> None:
    outcome = fault.run_check()
    assert outcome.verdict == "failed"
    assert fault.words in outcome.reason
