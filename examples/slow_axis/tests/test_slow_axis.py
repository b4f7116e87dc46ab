"""The kit's contract of axes: alone, and beside each other axis that is installed."""

import pytest
from slow_axis.axis import SlowAxis
from stratagem_testing import AxisContract, AxisSubject


class TestSlow(AxisContract):
    """Averaged after each step, it equals one process; with more steps in between it isn't meant to."""

    @pytest.fixture
    def subject(self):
        return AxisSubject(SlowAxis, options={"every": 1})
