"""The strategies do what every strategy does; at sizes 1 and 4 by `stratagem conformance NAME`."""

from __future__ import annotations

import pytest
from stratagem_model_parallel.conformance import CONTEXT_SUBJECT, SUBJECT
from stratagem_testing import StrategyContract, StrategySubject


class TestModelParallel(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT


class TestContextParallel(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return CONTEXT_SUBJECT
