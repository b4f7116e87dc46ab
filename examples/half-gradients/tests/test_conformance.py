"""half-gradients does what every strategy does, within what 16 bits allow."""

from __future__ import annotations

import pytest
from half_gradients.conformance import SUBJECT
from stratagem_testing import StrategyContract, StrategySubject


class TestHalfGradients(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT
