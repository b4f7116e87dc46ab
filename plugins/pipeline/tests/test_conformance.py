"""pipeline does what every strategy does; at sizes 1 and 4 by `stratagem conformance pipeline`."""

from __future__ import annotations

import pytest
from stratagem_pipeline.conformance import SUBJECT
from stratagem_testing import StrategyContract, StrategySubject

OWN = {
    "parity",
    "accumulation",
    "norm_clipping",
    "value_clipping",
    "optimizers",
    "tied_weights",
    "uneven_samples",
    "other_world_size",
    "start_methods",
}
"""Checks whose ground this package's other tests cover at more settings."""


class TestPipeline(StrategyContract):
    checks = tuple(check for check in StrategyContract.checks if check.name not in OWN)
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return SUBJECT
