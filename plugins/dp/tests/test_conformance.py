"""Both strategies do what every strategy does; world sizes are numbers of devices of the one process."""

from __future__ import annotations

import pytest
from stratagem_dp.conformance import DP, SUBJECT
from stratagem_testing import StrategyContract, StrategySubject


class TestDP(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return DP


class TestDDP2(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT
