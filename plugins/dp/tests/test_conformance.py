"""Both strategies do what every strategy does; world sizes are numbers of devices of the one process."""

from __future__ import annotations

import pytest

from stratagem.testing import StrategyContract, StrategySubject


class TestDP(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject("dp")


class TestDDP2(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject(
            "ddp2",
            options={"timeout_s": 60},
            options_for={"unused_parameters": {"find_unused_parameters": True}},
        )
