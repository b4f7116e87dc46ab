"""single does what every strategy does."""

from __future__ import annotations

import pytest
from stratagem_testing import StrategyContract, StrategySubject


class TestSingle(StrategyContract):
    world_sizes = (1,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject("single")
