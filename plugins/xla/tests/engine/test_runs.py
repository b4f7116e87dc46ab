"""Loops of one's own, several processes, and what is refused by PJRT's client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stratagem_testing import StrategySubject
from stratagem_testing.recipe import Recipe
from stratagem_testing.same import expect_same
from stratagem_testing.trained import plainly
from stratagem_xla.conformance import SINGLE, XLA
from xla_tasks import (
    launch_processes,
    own_loop,
    refusal,
    starts_after_a_backward,
    starts_with_another_number,
)

REPLICAS = StrategySubject("xla", accelerator="xla", options={"spmd": False}, tolerances=XLA.tolerances)

pytestmark = pytest.mark.timeout(360)


@pytest.mark.parametrize("subject", [SINGLE.at(1), XLA.at(2)], ids=["single_xla", "xla"])
def test_a_own_loop_goes_on_from_its_checkpoint(subject: StrategySubject, tmp_path: Path) -> None:
    first, second = subject.run(own_loop, str(tmp_path / "checkpoint"))[0]
    assert first == second
    assert len(set(first)) == 3


def test_torch_xla_launches_processes(tmp_path: Path) -> None:
    subject = replace(REPLICAS, folder=str(tmp_path)).at(1)
    trained, world_size = subject.alone(launch_processes, timeout_s=240)
    assert world_size == "1"
    expect_same([trained], plainly(Recipe(), 1), subject.tolerance())


def test_several_processes_are_refused_on_a_cpu() -> None:
    reported = REPLICAS.at(2).alone(refusal)
    assert reported.startswith("CombinationError: ")
    assert "PJRT's CPU only has one" in reported


def test_a_backward_before_is_reported() -> None:
    assert "ran a backward before XLA was started" in SINGLE.at(1).alone(starts_after_a_backward)


def test_another_number_of_devices_needs_another_process() -> None:
    reported = XLA.at(2).alone(starts_with_another_number)
    assert reported.startswith("DeviceError: XLA was started with 2 CPU devices in this process")
    assert "asks for 1 CPU device" in reported
