"""ddp does what every strategy does; its presets, in two processes, what they change something of."""

from __future__ import annotations

import pytest
from stratagem_ddp.conformance import SUBJECT, SUBJECTS
from stratagem_testing import COMPARED_WITH_ITSELF, StrategyContract, StrategySubject

CHANGED = ("parity", "manual_optimization", "other_world_size", "mid_epoch", *COMPARED_WITH_ITSELF)


class TestDDP(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT


class TestPresets(StrategyContract):
    """Of all their checks, which `stratagem conformance` tries."""

    checks = tuple(check for check in StrategyContract.checks if check.name in CHANGED)
    world_sizes = (2,)

    @pytest.fixture(params=[name for name in SUBJECTS if name != "ddp"])
    def subject(self, request: pytest.FixtureRequest) -> StrategySubject:
        return SUBJECTS[request.param]
