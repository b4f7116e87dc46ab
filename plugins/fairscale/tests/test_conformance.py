"""Both strategies do what every strategy does; at all sizes by `stratagem conformance`."""

from __future__ import annotations

import pytest

pytest.importorskip("fairscale", reason="stratagem-fairscale[engine] brings it")

from stratagem_fairscale.conformance import ONE_BY_ONE, PIPE, SHARDED
from stratagem_testing import StrategyContract, StrategySubject


class TestFairScaleSharded(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SHARDED


class TestFairScaleOneByOne(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return ONE_BY_ONE


class TestFairScalePipe(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return PIPE
