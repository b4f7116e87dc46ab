"""Both strategies do what every strategy does."""

from __future__ import annotations

import pytest
from stratagem_sharded.conformance import SUBJECT

from stratagem.testing import StrategyContract, StrategySubject


class TestDDPSharded(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT


class TestDDPFullySharded(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject("ddp_fully_sharded", options={"timeout_s": 60})
