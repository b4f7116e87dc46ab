"""The kit's checks of strategies, on compositions of two axes."""

from __future__ import annotations

import pytest
from mesh_subjects import composition
from stratagem_testing import StrategyContract, StrategySubject

pytestmark = pytest.mark.long


class OnFour(StrategyContract):
    """Two axes of two ranks."""

    world_sizes = (4,)


class TestShardTensor(OnFour):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return composition("shard=2+tensor=2", 2)


class TestReplicateTensor(OnFour):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return composition("replicate=2+tensor=2", 2)


class TestReplicateShard(OnFour):
    @pytest.fixture
    def subject(self) -> StrategySubject:
        return composition("replicate=2+shard=2", 4)
