"""The kit's checks of axes."""

from __future__ import annotations

import pytest
from stratagem_expert.conformance import SUBJECT
from stratagem_testing import AxisContract, AxisSubject


class TestExpert(AxisContract):
    @pytest.fixture
    def subject(self) -> AxisSubject:
        return SUBJECT
