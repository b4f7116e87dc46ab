"""The first difference between the training of the ranks and of one process, as named by `stratagem diff`."""

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
"""Questions that compare two trainings."""


def first_place(session: Session, ranks: Sequence[Seen], findings: Sequence[Finding]) -> str:
    """Return the first difference, if a comparison of trainings has found something wrong; otherwise "".

    Args:
        session: the runs.
        ranks: results of the first run under the strategy, by rank.
        findings: the answers to all questions.
    """
    wrong = {each.question for each in findings if each.question in COMPARED and each.verdict == "wrong"}
    if not wrong or ranks[0].draws or ranks[0].manual:
        return ""  # two trainings that draw random numbers differ from the first step
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
        except RankError:  # the ranks' batches can't be joined
            how = replace(how, form="ranks")
            one_process = alone("one process")
        found = compare(one_process, f"{folder}/ranks", [alone("another rounding", rounding=True)])
    except (RankError, StratagemError):
        return ""  # the findings are valid without it
    return with_cause(found) if found.first is not None else ""
