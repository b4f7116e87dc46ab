"""What ends a fit: its limits, and requests that wait for the minimums."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from stratagem_trainer.loops import stopping
from stratagem_trainer.loops.stopping import Stop
from threads import on_threads


def state(collectives: Any = None, should_stop: bool = False, **given: Any) -> Any:
    """A state after epoch 2 and step 10, of which 3 were made by this fit's earlier runs."""
    limits = {"epochs": None, "steps": None, "max_time": None, "min_epochs": None, "min_steps": None, **given}
    return SimpleNamespace(
        settings=SimpleNamespace(**limits),
        progress=SimpleNamespace(epoch=2, step=10, all_steps=13),
        should_stop=should_stop,
        runtime=SimpleNamespace(collectives=collectives),
    )


@pytest.mark.parametrize(
    ("given", "fit_is_over", "is_due"),
    [
        ({}, False, False),
        ({"epochs": 3}, False, False),
        ({"epochs": 2}, True, False),
        ({"epochs": 1}, True, False),
        ({"epochs": 0}, True, False),
        ({"steps": 14}, False, False),
        ({"steps": 13}, True, True),
        ({"steps": 12}, True, True),
        ({"steps": 0}, True, True),
        ({"should_stop": True}, True, True),
        ({"should_stop": True, "min_epochs": 2, "min_steps": 10}, True, True),
        ({"should_stop": True, "min_epochs": 1, "min_steps": 9}, True, True),
        ({"should_stop": True, "min_epochs": 3}, False, False),
        ({"should_stop": True, "min_steps": 11}, False, False),
        ({"should_stop": True, "min_epochs": 3, "min_steps": 10}, False, False),
        ({"should_stop": True, "min_epochs": 3, "steps": 13}, True, True),
        ({"should_stop": True, "min_steps": 11, "epochs": 2}, True, False),
        ({"min_epochs": 1, "min_steps": 1}, False, False),
    ],
)
def test_limits_and_requests(given: dict[str, Any], fit_is_over: bool, is_due: bool) -> None:
    stop = Stop(state(**given))
    assert (stop.is_fit_over(), stop.is_due()) == (fit_is_over, is_due)


def test_a_request_alone_is_heard() -> None:
    assert Stop(state(steps=13, epochs=2)).is_heard() is False
    assert Stop(state(should_stop=True)).is_heard() is True
    assert Stop(state(should_stop=True, min_steps=11)).is_heard() is False


def test_ranks_end_together_once_the_time_of_one_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(collectives: Any) -> list[Any]:
        its = state(collectives, max_time={"seconds": 30 + 5 * collectives.rank})
        stop, seen = Stop(its), []
        for seconds in (129.0, 130.5):
            clock["now"] = seconds
            collectives.barrier()
            seen.append((stop.is_due(), its.should_stop))
            collectives.barrier()
        return seen

    clock = {"now": 100.0}
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    assert on_threads(2, work) == [[(False, False), (True, True)]] * 2


def test_the_time_that_is_over_waits_for_the_minimums(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(collectives: Any) -> list[Any]:
        its = state(collectives, max_time={"seconds": 30}, min_steps=11)
        stop = Stop(its)
        clock["now"] = 131.0
        first = stop.is_due(), its.should_stop
        its.progress.step = 11
        return [first, stop.is_due()]

    clock = {"now": 100.0}
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: clock["now"]))
    assert on_threads(1, work) == [[(False, True), True]]
