"""A report of a component, with no code of its author."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_testing.html import html_page
from stratagem_testing.report import find_component, run_report, subject_names, subject_of

from stratagem.errors import UnknownNameError, UsageError
from stratagem.installed.catalogue import load_catalogue


def report(name: str, **how: Any) -> dict[str, Any]:
    kind, selection = find_component(load_catalogue(), name)
    return run_report(kind, name, selection, **how).to_json()


def test_a_strategy_is_found_before_other_kinds_and_tried_as_it_declares() -> None:
    reported: list[str] = []
    made = report(
        "single", only=["parity", "uneven_inputs"], tell=lambda outcome: reported.append(outcome.check)
    )
    assert (made["kind"], made["name"], made["distribution"]) == ("strategy", "single", "stratagem-single")
    assert [(c["check"], c["verdict"], c["world_size"]) for c in made["checks"]] == [
        ("parity", "passed", 1),
        ("uneven_inputs", "skipped", 1),
    ]
    assert (made["passed"], made["skipped"], made["failed"], made["waived"]) == (1, 1, 0, 0)
    assert reported == ["parity", "uneven_inputs"]


def test_several_checks_at_a_time_are_reported_in_their_order() -> None:
    names = ["ranks", "parity", "accumulation", "norm_clipping"]
    one, several = (report("ddp", only=names, world_sizes=[1, 2], jobs=jobs) for jobs in (1, 3))
    assert [(c["check"], c["world_size"], c["verdict"]) for c in several["checks"]] == [
        (c["check"], c["world_size"], c["verdict"]) for c in one["checks"]
    ]
    assert several["failed"] == 0


def test_a_components_own_subject_goes_first_and_presets_keep_their_name() -> None:
    catalogue = load_catalogue()
    own = subject_of("strategy", "ddp", catalogue.find("strategy", "ddp"))
    assert own.options_for["unused_parameters"] == {"find_unused_parameters": True}
    preset = subject_of("strategy", "ddp_fork", catalogue.find("strategy", "ddp_fork"))
    assert (preset.strategy, preset.options_for) == ("ddp_fork", own.options_for)
    assert subject_of("precision", "64-true", catalogue.find("precision", "64-true")).part == "64-true"


def test_presets_with_a_subject_of_their_own_are_tried_under_their_names() -> None:
    catalogue = load_catalogue()
    component = catalogue.find("strategy", "ddp")
    names = subject_names(component)
    assert names[0] == "ddp"
    assert {"ddp_fp16", "ddp_powersgd"} < set(names) < set(component.names())
    assert "ddp_fork" not in names
    assert subject_names(catalogue.find("strategy", "single")) == ["single"]
    own = subject_of("strategy", "ddp_bf16", catalogue.find("strategy", "ddp_bf16"))
    assert (own.strategy, own.tolerance()) == ("ddp_bf16", 1e-2)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="no strategy is called 'sinle'; nearest: single"):
        report("sinle")
    with pytest.raises(
        UsageError, match="there is no check 'parities' of a strategy; available: light_plugin"
    ):
        report("single", only=["parities"])
    with pytest.raises(UsageError, match="'single' can be tried at world size 1, not at 2, 4"):
        report("single", world_sizes=[2, 4])


def test_the_page_shows_verdicts_and_escapes_reasons() -> None:
    made = report("64-true")
    made["checks"][0] |= {"verdict": "failed", "reason": "<script> & co"}
    page = html_page([made])
    assert "precision 64-true" in page
    assert "&lt;script&gt; &amp; co" in page
    assert "<script>" not in page
    assert page.count('class="mark passed"') == made["passed"] - 1
    assert page.count('class="mark failed"') == 1
