"""`verify` sees what a strategy makes of loops that work on gradients, steps and tensors themselves."""

from __future__ import annotations

from functools import partial

import pytest
import wrong_own_loops as wrong
from averaging import Averaging
from stratagem_testing import StrategySubject
from stratagem_verify.own_loop import verify_loop
from verified_loops import loop_of

FAULTS = {
    "last_window": wrong.LeavesTheLastWindowStrategy,  # type: ignore[attr-defined]  # made by caught_by
    "two_backwards": wrong.AveragesOncePerForwardStrategy,
    "closure": wrong.DropsClosuresStrategy,  # type: ignore[attr-defined]  # made by caught_by
    "late_optimizer": wrong.LeavesLateOptimizersStrategy,
    "step_hook": wrong.StepsShardsStrategy,  # type: ignore[attr-defined]  # made by caught_by
    "row_written": wrong.WritesToCopiesStrategy,
    "mean_read": wrong.AnswersForItsShardStrategy,  # type: ignore[attr-defined]  # made by caught_by
}


def verdicts(name: str, strategy: type[Averaging]) -> tuple[list[str], str]:
    found = verify_loop(partial(loop_of, name), StrategySubject(strategy, world_size=2))
    return [each.verdict for each in found.findings], " ".join(each.text for each in found.findings)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen(name: str) -> None:
    found, text = verdicts(name, FAULTS[name])
    assert "wrong" in found, text


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_a_right_strategy_passes_or_refuses(name: str) -> None:
    found, text = verdicts(name, Averaging)
    if name == "late_optimizer":
        assert "setup() didn't get it" in text
    else:
        assert found == ["right", "right"], text
