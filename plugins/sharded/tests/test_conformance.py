"""Both strategies do what every strategy does; at sizes 1 and 4 by `make conformance`."""

from __future__ import annotations

import pytest
from stratagem_sharded.conformance import SUBJECT
from stratagem_testing import StrategyContract, StrategySubject


class TestDDPSharded(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT


class TestDDPFullySharded(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject(
            "ddp_fully_sharded",
            options={"timeout_s": 60},
            options_for={"no_sync": {"reduce_each_micro_batch": False}},
        )
