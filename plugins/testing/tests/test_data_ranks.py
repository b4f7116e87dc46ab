"""Ranks that share a copy of the model read, draw and log alike; the data are shared among the copies."""

import pytest
from averaging import Twins, pairs
from stratagem_testing import StrategyContract, StrategySubject

SAYS_IT = {
    "parity",
    "collectives",
    "seed",
    "ranks_draw_apart",
    "every_sample_once",
    "uneven_samples",
    "uneven_inputs",
    "evaluation_once",
    "predict_in_order",
    "mid_epoch",
    "other_world_size",
}


class TestTwins(StrategyContract):
    checks = tuple(check for check in StrategyContract.checks if check.name in SAYS_IT)
    world_sizes = (2, 4)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject(Twins, data_ranks=pairs)


def test_every_check_is_there():
    assert {check.name for check in TestTwins.checks} == SAYS_IT
