"""What every strategy does, of the checks that the algorithms change something of; all by `stratagem conformance`."""

from __future__ import annotations

import pytest
from stratagem_bagua.conformance import SUBJECTS
from stratagem_testing import COMPARED_WITH_ITSELF, StrategyContract, StrategySubject


class TestBagua(StrategyContract):
    checks = tuple(
        check
        for check in StrategyContract.checks
        if check.name in ("parity", "buffers", *COMPARED_WITH_ITSELF)
    )
    world_sizes = (2,)

    @pytest.fixture(params=SUBJECTS)
    def subject(self, request: pytest.FixtureRequest) -> StrategySubject:
        return SUBJECTS[request.param]
