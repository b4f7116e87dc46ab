"""It does what every strategy does, at 1, 2 and 4 processes."""

from __future__ import annotations

import pytest
from stratagem_horovod.conformance import COMPRESSED, SUBJECT
from stratagem_testing import COMPARED_WITH_ITSELF, StrategyContract, StrategySubject


class TestGloo(StrategyContract):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT


class TestCompressed(StrategyContract):
    """Of the checks that compression changes something of."""

    checks = tuple(
        check
        for check in StrategyContract.checks
        if check.name in ("parity", "accumulation", "norm_clipping", "missing_losses", *COMPARED_WITH_ITSELF)
    )
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return COMPRESSED
