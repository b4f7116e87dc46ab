"""Every check of a part fails where it should, and by what."""

from __future__ import annotations

from typing import Any

import pytest
from stratagem_testing import (
    AcceleratorSubject,
    CheckpointSubject,
    EnvironmentSubject,
    ExtensionSubject,
    LauncherSubject,
    LoggerSubject,
    PlaceSubject,
    PrecisionSubject,
    run_check,
)
from stratagem_testing.parts import PART_CHECKS
from wrong_other_parts import read_lines
from wrong_parts import WRONG

VARIABLES = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29501",
}
ASKED_AS = {
    "contexts_end": "bf16-mixed",
    "true_gradients": "16-mixed",
    "skips_overflows": "16-mixed",
    "state": "16-mixed",
    "computes_as_named": "bf16-mixed",
    "keeps_weights": "bf16-mixed",
    "resumes": "bf16-true",
    "same_on_all_ranks": "bf16-true",
}


def subject_for(kind: str, check: str, part: Any) -> Any:
    if kind == "precision":
        return PrecisionSubject(part, asked_as=ASKED_AS.get(check, "32-true"))
    if kind == "environment":
        return EnvironmentSubject(part, examples=((VARIABLES, {"global_rank": 3}),))
    if kind == "logger":
        return LoggerSubject(part, read=read_lines)
    if kind in ("extension", "place"):
        return ExtensionSubject(part) if kind == "extension" else PlaceSubject(part)
    return {"accelerator": AcceleratorSubject, "checkpoint": CheckpointSubject, "launcher": LauncherSubject}[
        kind
    ](part)


@pytest.mark.parametrize(("kind", "name"), WRONG)
def test_a_wrong_part_is_caught_by_exactly_its_check(kind: str, name: str) -> None:
    part, words = WRONG[kind, name]
    for check in PART_CHECKS[kind]:
        if kind in ("launcher", "checkpoint", "extension", "logger", "place") and check.name != name:
            continue  # each takes processes
        outcome = run_check(check, subject_for(kind, name, part), max(check.world_sizes))
        if check.name == name:
            assert outcome.verdict == "failed"
            assert words in outcome.reason
            break
        assert outcome.verdict in ("passed", "skipped"), outcome.reason


def test_every_check_has_a_wrong_part() -> None:
    assert {(kind, check.name) for kind, checks in PART_CHECKS.items() for check in checks} == set(WRONG)
