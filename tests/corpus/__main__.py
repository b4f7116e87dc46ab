"""`python -m tests.corpus [MODULE…]`: run the corpus, print what `diff` says of each bug, and write docs/corpus.md.

The exit code is 1 where a bug isn't detected, or a right form is said to differ. With modules, only these are run,
and the page isn't written.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.corpus.clean import section
from tests.corpus.measure import ROOT, Outcome, outcomes, run_programs

MODULES = (
    "on_torch",
    "on_fsdp",
    "on_resume",
    "on_experts",
    "on_tensor_parallel",
    "on_lightning",
    "on_accelerate",
    "on_deepspeed",
    "on_fairscale",
)
PAGE = ROOT / "docs/corpus.md"
HEAD = """# A corpus of training bugs

Each row is a bug of a public issue, rebuilt in `tests/corpus` as a small program in our own words, in a right and a
wrong form. [`diff`](guides/diff.md) compares both with a plain loop in one process. A bug is *detected* if the wrong
form differs, and *named* if the first difference is at its place: the kind of value, and the module or parameter. A
*false alarm* is a right form that is said to differ. Each right form is compared twice, with measured and with
estimated rounding.
"""


def main(chosen: Sequence[str]) -> int:
    """Run the corpus. Returns the exit code."""
    found: list[Outcome] = []
    for module in chosen or MODULES:
        bugs = importlib.import_module(f"tests.corpus.{module}").BUGS
        with tempfile.TemporaryDirectory() as folder:
            run_programs(module, Path(folder))
            for outcome in outcomes(bugs, Path(folder)):
                _print(outcome)
                found.append(outcome)
    print("\n".join(_totals(found)))
    if not chosen:
        PAGE.write_text(page(found), encoding="utf-8")
    return int(any(not each.is_detected or each.alarms for each in found))


def page(found: Sequence[Outcome]) -> str:
    """Return the page of the results."""
    cells = [
        (f"[{_words(each)}]({each.bug.url})", each.bug.area, each.bug.engine, _result(each), each.sentence)
        for each in found
    ]
    rows = [f"| {' | '.join(row)} |" for row in cells]
    head = ["| bug | area | on | result | what `diff` says |", "| --- | --- | --- | --- | --- |"]
    totals = [
        "`make corpus` runs all programs, prints this, and writes this page:",
        "",
        "```text",
        *_totals(found),
        "```",
    ]
    return "\n".join([HEAD, *totals, "", *head, *rows, "", section()])


def _totals(found: Sequence[Outcome]) -> list[str]:
    count = len(found)
    others = sum(each.bug.engine != "PyTorch" for each in found)
    alarms = sum(len(each.alarms) for each in found)
    detected, named = sum(each.is_detected for each in found), sum(each.is_named for each in found)
    return [
        f"{count} bugs, {others} of them on more than PyTorch in one process: {detected} detected, {named} named",
        f"{2 * count} comparisons of right forms, {alarms} false alarms",
    ]


def _words(outcome: Outcome) -> str:
    text = outcome.bug.program.__doc__ or outcome.bug.name
    return text.rstrip(".")


def _result(outcome: Outcome) -> str:
    result = "named" if outcome.is_named else "detected" if outcome.is_detected else "missed"
    return f"{result}, false alarm" if outcome.alarms else result


def _print(outcome: Outcome) -> None:
    print(f"{_result(outcome):<9} {outcome.bug.name}: {outcome.sentence}", flush=True)
    for cause in outcome.causes[:1]:
        print(f"          {cause}")
    for alarm in outcome.alarms:
        print(f"          right form: {alarm}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
