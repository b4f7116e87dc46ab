"""The accelerator does what every accelerator does, and strategies give the CPU's numbers on it when work runs late.

Few checks of strategies run here; `STRATAGEM_SIM_DELAY=late stratagem conformance ddp --accelerator sim` runs all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stratagem_sim.build import is_built
from stratagem_testing import AcceleratorContract, AcceleratorSubject, StrategyContract, StrategySubject
from stratagem_testing.strategies import STRATEGY_CHECKS

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]
SHORT = ("parity", "accumulation", "clipping", "no_sync", "tied_weights", "save_and_load")

WAIVERS = {
    "no_sync": "PyTorch has sequence numbers for its own process groups alone, by which the check counts collectives"
}


@pytest.fixture(autouse=True, scope="module")
def _work_runs_late() -> Iterator[None]:
    # The ranks are started below, in processes of their own.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATAGEM_SIM_DELAY", "late")
        yield


class TestSim(AcceleratorContract):
    @pytest.fixture
    def subject(self) -> AcceleratorSubject:
        return AcceleratorSubject("sim")


class TestDDP(StrategyContract):
    checks = tuple(check for check in STRATEGY_CHECKS if check.name in SHORT)
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject(
            "ddp", accelerator="sim", options={"timeout_s": 60}, own_processes=True, waivers=WAIVERS
        )


class TestFSDP(StrategyContract):
    checks = tuple(check for check in STRATEGY_CHECKS if check.name in SHORT)
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return StrategySubject(
            "fsdp", accelerator="sim", options={"timeout_s": 60}, own_processes=True, waivers=WAIVERS
        )
