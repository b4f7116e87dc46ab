"""The strategies do what every strategy does; at sizes 1 and 4 by `stratagem conformance NAME`."""

from __future__ import annotations

import pytest
from stratagem_model_parallel.conformance import CONTEXT_SUBJECT, SUBJECT
from stratagem_testing import StrategyContract, StrategySubject

CHANGED = ("parity", "precisions", "accumulation", "manual_optimization", "penalties", "buffers", "mid_epoch")


class TestModelParallel(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT


class TestContextParallel(StrategyContract):
    """Of its checks, those that shards change something of: the rest is ddp's, and tried there."""

    checks = tuple(check for check in StrategyContract.checks if check.name in CHANGED)
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return CONTEXT_SUBJECT
