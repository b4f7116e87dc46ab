"""ddp does what every strategy does."""

from __future__ import annotations

import pytest

from stratagem.testing import StrategyContract, StrategySubject


class TestDDP(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject(
            "ddp",
            options={"timeout_s": 60},
            options_for={"unused_parameters": {"find_unused_parameters": True}},
        )
