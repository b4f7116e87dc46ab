"""The kit's contract notices an accelerator whose device doesn't keep the order of its work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from stratagem_sim import SimAccelerator
from stratagem_sim.build import is_built
from stratagem_testing import AcceleratorSubject
from stratagem_testing.outcome import run_check
from stratagem_testing.parts import PART_CHECKS

pytestmark = [
    pytest.mark.sim,
    pytest.mark.skipif(not is_built(), reason="needs the device, which make test-sim builds"),
]


@pytest.fixture(autouse=True, scope="module")
def _work_runs_late() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATAGEM_SIM_DELAY", "late")
        patch.setenv("STRATAGEM_SIM_LATE_MS", "5000")
        yield


class Hasty(SimAccelerator):
    """Doesn't wait."""

    def synchronize(self, device: torch.device) -> None:
        pass


class Unordered(SimAccelerator):
    """Its streams don't wait for each other. Checks run in processes of their own, which end with them."""

    def set_up(self, device: torch.device) -> None:
        super().set_up(device)

        class Stream(torch.Stream):
            def wait_stream(self, stream: Any) -> None:
                pass

        torch.Stream = Stream  # type: ignore[misc]  # a device's, planted on the CPU


class Reusing(SimAccelerator):
    """Takes memory again that another stream still reads."""

    def set_up(self, device: torch.device) -> None:
        super().set_up(device)
        torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign,assignment]  # the fault


class Timeless(SimAccelerator):
    """Its events have no times."""

    def set_up(self, device: torch.device) -> None:
        super().set_up(device)

        class Event(torch.Event):
            def elapsed_time(self, end_event: Any) -> float:
                return 0.0

        torch.Event = Event  # type: ignore[misc]  # a device's, planted on the CPU


WRONG = {
    Hasty: ("synchronizes", "after synchronize() has returned"),
    Unordered: ("streams", "a stream has waited for another one, but reads the sum nan"),
    Reusing: ("recorded_memory", "freed while it was read"),
    Timeless: ("event_times", "one product takes 0.0 ms"),
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_the_check_of_it_fails_and_says_why(kind: type[SimAccelerator]) -> None:
    name, reason = WRONG[kind]
    (check,) = (each for each in PART_CHECKS["accelerator"] if each.name == name)
    assert run_check(check, AcceleratorSubject("sim"), 1).verdict == "passed"
    outcome = run_check(check, AcceleratorSubject(kind), 1)
    assert outcome.verdict == "failed"
    assert reason in outcome.reason
