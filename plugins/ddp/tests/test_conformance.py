"""ddp does what every strategy does."""

from __future__ import annotations

import pytest
from stratagem_ddp.conformance import SUBJECT

from stratagem.testing import StrategyContract, StrategySubject


class TestDDP(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT
