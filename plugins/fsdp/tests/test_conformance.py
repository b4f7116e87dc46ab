"""fsdp does what every strategy does; at sizes 1 and 4 by `stratagem conformance fsdp`."""

from __future__ import annotations

import pytest
from stratagem_testing import StrategyContract, StrategySubject


class TestFSDP(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject("fsdp", options={"timeout_s": 60})


@pytest.mark.long
class TestOneRank(StrategyContract):
    """Nothing is in shards there, and what is tried on shards in other runs has to train, too."""

    world_sizes = (1,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject("fsdp", options={"timeout_s": 60})
