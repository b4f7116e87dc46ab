"""Real runs of one and two processes: right ones agree, and of a wrong one the place is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stratagem_diff import Comparison, compare, sentence
from stratagem_diff.causes import likely_causes

Recorded = Callable[..., Path]


def against_one_process(recorded: Recorded, form: str, fault: str = "none") -> Comparison:
    noise = recorded("single", "none", "--rounding")
    return compare(recorded("single"), recorded(form, fault), [noise])


@pytest.mark.parametrize("form", ["ddp", "fsdp", "compiled"])
def test_right_runs_agree(recorded: Recorded, form: str) -> None:
    found = against_one_process(recorded, form)
    assert sentence(found) == f"The runs agree: {found.compared} values of 3 steps are equal up to rounding."
    assert found.compared > 400
    # A fault would be a hundred times as large as what rounding comes to anywhere.
    assert max(allowed for _, allowed in found.errors.values()) < 1e-3


def test_they_agree_without_a_second_rounding_too(recorded: Recorded) -> None:
    assert compare(recorded("single"), recorded("ddp")).first is None


@pytest.mark.parametrize("form", ["ddp", "fsdp"])
def test_one_wrong_gradient_is_named_with_its_rank(recorded: Recorded, form: str) -> None:
    found = against_one_process(recorded, form, "bias")
    assert found.first is not None
    assert found.first.place.kind == "parameter gradient"
    assert found.first.place.name == "layers.1.linear1.bias"
    assert (found.first.place.step, found.first.ranks) == (1, (1,))
    assert {each.place.name for each in found.differences if each.place.step == 1} == {
        "layers.1.linear1.bias"
    }


@pytest.mark.parametrize("form", ["ddp", "fsdp"])
def test_a_scale_is_reported_with_its_factor(recorded: Recorded, form: str) -> None:
    found = against_one_process(recorded, form, "undivided")
    assert sentence(found) == (
        "Step 1: the gradients of all 27 parameters, first 'embed.weight', differ on all ranks: B's are 2 times A's."
    )
    assert "not divided by the number of micro-batches" in likely_causes(found)[0]


def test_a_lost_micro_batch_is_a_likely_cause(recorded: Recorded) -> None:
    found = against_one_process(recorded, "ddp", "lost")
    assert likely_causes(found)[0].startswith("about 1 of 2 micro-batches missing")
