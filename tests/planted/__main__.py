"""`python -m tests.planted [NAME…]`: plant faults in components, and count those that the kit catches.

It plants the faults that were written for a check (`caught_by` in tests/support), and those of further.yaml, which
were chosen without looking at the kit. The exit code is 1 where an area has less than 90 %.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planting import Fault

    Planted = tuple[Fault, tuple[str, ...], bool]
    """A fault, the checks to try on it, and whether it was chosen without looking at the kit."""

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

ENOUGH = 0.9
AREAS = ("exact", "lossy", "copies", "checkpoint", "precision", "others")
PLANTED = (
    "lossy",
    "wrong_axes",
    "wrong_configuration",
    "wrong_copies",
    "wrong_fidelity",
    "wrong_other_parts",
    "wrong_own_loops",
    "wrong_parts",
    "wrong_resumption",
    "wrong_strategies",
    "wrong_weights",
)
"""Modules whose faults were written for a check."""


@dataclass
class Score:
    """How many faults of an area were planted, and how many of them the kit caught."""

    area: str
    own: int = 0
    """Written for a check."""
    own_caught: int = 0
    further: int = 0
    """Chosen without looking at the kit."""
    further_caught: int = 0

    def add(self, is_further: bool, caught: bool) -> None:
        """Count a fault."""
        if is_further:
            self.further += 1
            self.further_caught += caught
        else:
            self.own += 1
            self.own_caught += caught

    @property
    def share(self) -> float:
        """Of all faults, those that were caught."""
        return (self.own_caught + self.further_caught) / max(1, self.own + self.further)


def main(chosen: list[str]) -> int:
    """Plant each fault, or those chosen by name, print what came of it, and count."""
    tried = [each for each in all_faults() if not chosen or each[0].name in chosen]
    if unknown := sorted(set(chosen) - {fault.name for fault, *_ in tried} - impossible().keys()):
        sys.exit(
            f"no fault is called {unknown[0]!r}: further.yaml and the modules in tests/support have the names"
        )
    caught = set()
    for fault, checks, is_further in tried:
        found = first_failure(fault, checks)
        if found:
            caught.add((fault.area, fault.name, is_further))
        print(f"{fault.area} {fault.name}: {found or 'ESCAPED ' + ', '.join(checks)}", flush=True)
    for name, reason in impossible().items():
        if not chosen or name in chosen:
            print(f"{name}: can't be planted: {reason}")
    counted = scores(tried, caught)
    print(table(counted))
    return int(any(score.share < ENOUGH for score in counted))


def first_failure(fault: Fault, checks: tuple[str, ...]) -> str:
    """Return by which check a fault is caught and why; empty where by none."""
    for check in checks:
        outcome = fault.run_check(check)
        if outcome.verdict == "failed":
            return f"caught by {check}: {outcome.reason[:100]}".replace("\n", " ")
    return ""


def all_faults() -> Iterator[Planted]:
    """Yield each fault, the checks to try on it, and whether it was chosen without looking at the kit."""
    for name in PLANTED:
        __import__(name)
    from faults import FURTHER
    from planting import FAULTS

    for fault in FAULTS:
        yield fault, (fault.check,), False
    for fault, checks in FURTHER:
        yield fault, checks, True


def impossible() -> dict[str, str]:
    """Return the faults of further.yaml that no component can have, with reasons."""
    from faults import AREA_OF, FURTHER, IMPOSSIBLE

    assert AREA_OF.keys() == IMPOSSIBLE.keys() | {fault.name for fault, _ in FURTHER}
    return IMPOSSIBLE


def scores(tried: Iterable[Planted], caught: Collection[tuple[str, str, bool]] = ()) -> list[Score]:
    """Count faults by area, and all of them.

    Args:
        tried: as `all_faults` yields them.
        caught: (area, name, whether it was chosen without looking at the kit) of those that were caught.
    """
    by_area = {area: Score(area) for area in (*AREAS, "all")}
    for fault, _, is_further in tried:
        for area in (fault.area, "all"):
            by_area[area].add(is_further, (fault.area, fault.name, is_further) in caught)
    return [score for score in by_area.values() if score.own + score.further]


def table(counted: list[Score]) -> str:
    """Return the scores as Markdown."""
    lines = ["| area | written for a check | caught | chosen without the kit | caught | share |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for each in counted:
        counts = f"{each.own} | {each.own_caught} | {each.further} | {each.further_caught}"
        lines.append(f"| {each.area} | {counts} | {each.share:.0%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
