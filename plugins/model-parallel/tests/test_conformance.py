"""model_parallel does what every strategy does; at sizes 1 and 4 by `stratagem conformance model_parallel`."""

from __future__ import annotations

import pytest
from stratagem_model_parallel.conformance import SUBJECT
from stratagem_testing import StrategyContract, StrategySubject


class TestModelParallel(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT
