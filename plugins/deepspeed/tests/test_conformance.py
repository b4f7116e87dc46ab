"""Every stage does what every strategy does, at 1, 2 and 4 processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stratagem_deepspeed.conformance import SUBJECT, SUBJECTS
from stratagem_testing import StrategyContract, StrategySubject

pytestmark = pytest.mark.timeout(600)


class TestStage0(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return replace(SUBJECT, options={**SUBJECT.options, "stage": 0})


class TestStage1(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECTS["deepspeed_stage_1"]


class TestStage2(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECTS["deepspeed_stage_2"]


class TestStage3(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECTS["deepspeed_stage_3"]
