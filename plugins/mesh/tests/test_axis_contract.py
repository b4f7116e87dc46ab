"""Each axis does what every axis is to do: alone, and beside each other one."""

from __future__ import annotations

import pytest
from stratagem_model_parallel.conformance import AXIS_SUBJECT, CONTEXT_AXIS_SUBJECT
from stratagem_testing import AxisContract, AxisSubject
from wrong_axes import CopiesAxis

pytestmark = pytest.mark.long


class TestShard(AxisContract):
    @pytest.fixture
    def subject(self) -> AxisSubject:
        return AxisSubject("shard")


class TestReplicate(AxisContract):
    @pytest.fixture
    def subject(self) -> AxisSubject:
        return AxisSubject("replicate")


class TestTensor(AxisContract):
    @pytest.fixture
    def subject(self) -> AxisSubject:
        return AXIS_SUBJECT


class TestContext(AxisContract):
    @pytest.fixture
    def subject(self) -> AxisSubject:
        return CONTEXT_AXIS_SUBJECT


class TestPipeline(AxisContract):
    """Beside an axis that needs the whole module it is refused."""

    @pytest.fixture
    def subject(self) -> AxisSubject:
        return AxisSubject("pipeline")


class TestOneThatIsNotOurs(AxisContract):
    @pytest.fixture
    def subject(self) -> AxisSubject:
        return AxisSubject(CopiesAxis)
