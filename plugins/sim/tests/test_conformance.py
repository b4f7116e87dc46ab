"""The accelerator does what every accelerator does, and strategies give the CPU's numbers on it when work runs late.

All checks run for ddp, fsdp and fsdp_offload, and some for other strategies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from stratagem_sim.build import is_built
from stratagem_testing import AcceleratorContract, AcceleratorSubject, StrategyContract, StrategySubject
from stratagem_testing.report import subject_of
from stratagem_testing.strategies import STRATEGY_CHECKS

from stratagem.sdk.catalogue import load_catalogue

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]
OTHERS = (
    "ddp_sharded",
    "ddp_fully_sharded",
    "fsdp_hybrid",
    "ddp_bf16",
    "bagua_bytegrad",
    "diloco",
    "pipeline",
)
FURTHER = (
    "ddp_powersgd",
    "bagua_decentralized",
    "bagua_async",
    "model_parallel",
    "context_parallel",
    "fsdp",
    "ddp",
)
SHORT = ("parity", "accumulation", "norm_clipping", "no_sync", "tied_weights", "save_and_load")
FOUR_RANKS = ("preemption", "replicas_are_compared")

WAIVERS = {
    "no_sync": "PyTorch has sequence numbers for its own process groups alone, by which the check counts collectives",
    "sparse_gradients": "sim has no sparse tensors",
}

OFFLOAD_WAIVERS = {
    "penalties": "PyTorch's autograd asserts a stream where a gradient on the device goes to parameters on the CPU",
}


@pytest.fixture(autouse=True, scope="module")
def _work_runs_late() -> Iterator[None]:
    # The ranks are started below, in processes of their own.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATAGEM_SIM_DELAY", "late")
        patch.setenv("STRATAGEM_SIM_DEVICES", "4")
        yield


class TestSim(AcceleratorContract):
    @pytest.fixture
    def subject(self) -> AcceleratorSubject:
        return AcceleratorSubject("sim")


def on_sim(strategy: str) -> StrategySubject:
    """Return the subject that the strategy's plugin declares, with its tolerances, on sim."""
    declared = subject_of("strategy", strategy, load_catalogue().find("strategy", strategy))
    options = {**declared.options, "timeout_s": 60}
    waivers = {**declared.waivers, **WAIVERS}
    on: StrategySubject = replace(
        declared, accelerator="sim", options=options, own_processes=True, waivers=waivers
    )
    return on


class TestDDP(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return on_sim("ddp")


class TestFSDP(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        return on_sim("fsdp")


class TestOffload(StrategyContract):
    world_sizes = (2,)

    @pytest.fixture
    def subject(self) -> StrategySubject:
        declared = on_sim("fsdp_offload")
        return replace(declared, waivers={**declared.waivers, **OFFLOAD_WAIVERS})


def test_checks_are_called_so() -> None:
    assert {*SHORT, *FOUR_RANKS} <= {check.name for check in STRATEGY_CHECKS}


class TestOthers(StrategyContract):
    checks = tuple(check for check in STRATEGY_CHECKS if check.name in SHORT)
    world_sizes = (2,)

    @pytest.fixture(params=OTHERS)
    def subject(self, request: pytest.FixtureRequest) -> StrategySubject:
        return on_sim(request.param)


class TestWeights(StrategyContract):
    """Weights of losses are summed in another group than gradients are, so that nothing else orders the two."""

    checks = tuple(check for check in STRATEGY_CHECKS if check.name == "weighted_losses")
    world_sizes = (2,)

    @pytest.fixture
    def subject(self, monkeypatch: pytest.MonkeyPatch) -> StrategySubject:
        monkeypatch.setenv("STRATAGEM_SIM_LATE_MS", "500")  # more than a step takes
        return on_sim("fsdp_hybrid")


class TestFurther(StrategyContract):
    """Parity, for strategies that wait in ways of their own, and for more and fewer ranks."""

    checks = tuple(check for check in STRATEGY_CHECKS if check.name == "parity")
    world_sizes = (1, 2, 4)

    @pytest.fixture(params=FURTHER)
    def subject(self, request: pytest.FixtureRequest) -> StrategySubject:
        return on_sim(request.param)


@pytest.mark.parametrize("name", FOUR_RANKS)
def test_four_ranks(name: str, tmp_path: Path) -> None:
    """What ranks agree on while work is late: when to stop, and that their copies are equal."""
    (check,) = (each for each in STRATEGY_CHECKS if each.name == name)
    check.run(replace(on_sim("ddp"), world_size=4, folder=str(tmp_path)))
