"""The first place where the ranks' training differs from one process's, as `stratagem diff` names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stratagem_diff import compare
from stratagem_testing.first_difference import Recording, with_cause
from stratagem_testing.workers import RankError

from stratagem.errors import StratagemError
from stratagem_verify import runs
from stratagem_verify.observed import Seen
from stratagem_verify.runs import Repetition
from stratagem_verify.session import Finding, Session

COMPARED = ("loss", "gradients", "training")
"""Questions whose answer is a comparison of two trainings."""


def first_place(session: Session, ranks: Sequence[Seen], findings: Sequence[Finding]) -> str:
    """Say where the trainings part, if a comparison of them found something wrong; otherwise return "".

    Args:
        session: of the runs.
        ranks: what the first run under the strategy came to, by rank.
        findings: the answers.
    """
    wrong = {each.question for each in findings if each.question in COMPARED and each.verdict == "wrong"}
    if not wrong or ranks[0].draws or ranks[0].manual:
        return ""  # two trainings that draw random numbers differ from the first step on
    source, steps = session.longest if wrong == {"training"} else ("train", ranks[0].steps)
    folder, how = session.plan.path("records"), Repetition(source, "whole", steps)

    def alone(name: str, **options: Any) -> str:
        recording = Recording(f"{folder}/{name}", steps=steps, **options)
        session.alone(f"recording: {name}", runs.repeat, how, [recording])
        return f"{folder}/{name}"

    try:
        session.under("recording: ranks", runs.record, "recorded", f"{folder}/ranks", steps)
        try:
            one_process = alone("one process")
        except RankError:  # the ranks' batches don't make one
            how = replace(how, form="ranks")
            one_process = alone("one process")
        found = compare(one_process, f"{folder}/ranks", [alone("another rounding", rounding=True)])
    except (RankError, StratagemError):
        return ""  # what was found stands without it
    return with_cause(found) if found.first is not None else ""
