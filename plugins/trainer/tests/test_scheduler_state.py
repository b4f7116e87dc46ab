"""A function in a scheduler's state goes by its name, and another one is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from stratagem_trainer.saving.scheduler_state import named_functions, own_functions

from stratagem.errors import CheckpointError


def falls(step: int) -> float:
    return 1 / (step + 1)


def rises(step: int) -> float:
    return math.sqrt(step)


def state(function: Any) -> dict[str, Any]:
    return {"last_epoch": 3, "inner": [{"anneal": function, "rates": [0.1]}]}


def test_the_schedulers_own_function_comes_back() -> None:
    saved = named_functions(state(falls))
    assert falls not in saved["inner"][0].values()
    assert own_functions(saved, state(falls)) == state(falls)


@pytest.mark.parametrize("other", [rises, None])
def test_another_one_is_refused(other: Any) -> None:
    with pytest.raises(CheckpointError, match=r"saved with the function .*\.falls, and this run's has"):
        own_functions(named_functions(state(falls)), state(other))


def test_a_lambda_stays_for_the_writer_to_refuse() -> None:
    unnamed = lambda step: step  # noqa: E731
    assert named_functions(state(unnamed)) == state(unnamed)
