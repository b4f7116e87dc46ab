"""What every strategy does, of the checks that DiLoCo changes something of; all by `stratagem conformance`."""

from __future__ import annotations

import pytest
from stratagem_diloco.conformance import SUBJECTS
from stratagem_testing import COMPARED_WITH_ITSELF, StrategyContract, StrategySubject

CHANGED = ("refuses_undeclared", "parity", "same_start", "replicas_are_compared", "mid_epoch")


class TestDiLoCo(StrategyContract):
    checks = tuple(
        check for check in StrategyContract.checks if check.name in (*CHANGED, *COMPARED_WITH_ITSELF)
    )
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECTS["diloco"]


class TestStreaming(StrategyContract):
    checks = tuple(check for check in StrategyContract.checks if check.name in COMPARED_WITH_ITSELF)
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECTS["streaming_diloco"]
