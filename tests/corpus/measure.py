"""Run the corpus, and compare each form with the reference."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from stratagem_diff import Comparison, compare, sentence
from stratagem_diff.causes import likely_causes

from tests.corpus.bug import Bug

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """What `diff` said of one bug."""

    bug: Bug
    sentence: str
    """Of the wrong form."""
    causes: tuple[str, ...]
    is_detected: bool
    is_named: bool
    """Whether the first difference is at the bug's place."""
    alarms: tuple[str, ...]
    """Sentences about right forms that say they differ, with measured and with estimated rounding."""


def run_programs(module: str, folder: Path) -> None:
    """Run all forms of a module's programs: in one process, then in two.

    Raises:
        RuntimeError: a program failed.
    """
    everything = ["reference", "rounding", "right", "wrong"]
    start = [sys.executable, "-m"]
    launch = [*start, "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    for command in (start, launch):
        whole = [*command, "tests.corpus.worker", module, str(folder), *everything]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(whole, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(whole)}\n{done.stderr[-4000:]}")


def outcomes(bugs: Sequence[Bug], folder: Path) -> list[Outcome]:
    """Compare what the programs recorded."""
    return [_outcome(bug, folder / bug.name) for bug in bugs]


def _outcome(bug: Bug, folder: Path) -> Outcome:
    reference, rounding = folder / "reference", folder / "rounding"
    found = compare(reference, folder / "wrong", [rounding])
    alarms = []
    for measured in ([rounding], []):
        right = compare(reference, folder / "right", measured)
        if right.first is not None:
            alarms.append(sentence(right))
    return Outcome(
        bug,
        sentence(found),
        tuple(likely_causes(found)),
        found.first is not None,
        _is_named(bug, found),
        tuple(alarms),
    )


def _is_named(bug: Bug, found: Comparison) -> bool:
    if found.first is None:
        return False
    place = found.first.place
    return fnmatchcase(f"{place.kind} {place.name}", bug.place)


def failures(module: str, bugs: Sequence[Bug], folder: Path) -> list[str]:
    """Run a module, and return what isn't as it should be."""
    run_programs(module, folder)
    found = []
    for each in outcomes(bugs, folder):
        if not each.is_named:
            found.append(f"{each.bug.name} isn't named: {each.sentence}")
        found += [f"the right form of {each.bug.name} is said to differ: {alarm}" for alarm in each.alarms]
    return found
