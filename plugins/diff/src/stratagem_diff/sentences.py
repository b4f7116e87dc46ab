"""What a comparison says: one sentence, then one screen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stratagem_diff.causes import likely_causes
from stratagem_diff.comparison import Comparison, Difference
from stratagem_diff.files import Place
from stratagem_diff.non_finite import NonFinite
from stratagem_diff.side import ranks_text

SHOWN = 10
"""Rows of the table."""
NOTES = 6
"""Notes on a screen."""

_WHAT = {
    "start": "{name}",
    "input": "an input of {name}",
    "output": "the forward value of {name}",
    "output gradient": "the gradient of the value of {name}",
    "parameter gradient": "the gradient of parameter {name}",
    "optimizer state": "the optimizer's {item!r} of parameter {name}",
    "parameter": "parameter {name}",
    "buffer": "buffer {name}",
}
_DIFFERS = {
    "start": "{start}, {what} differs",
    "input": "step {step}: the batches differ",
    "parameter": "step {step}: {what} differs after its update",
}
"""What is said in other words than "step {step}: {what} differs"."""


def sentence(found: Comparison) -> str:
    """Return one sentence: the first place where the runs differ, or that they don't."""
    first = found.first
    steps = f"{found.steps} step{'s' * (found.steps != 1)}"
    if first is None:
        return f"The runs agree: {found.compared} values of {steps} are equal up to rounding."
    ranks = ranks_text(first.ranks, found.theirs.world_size)
    alike = scaled_alike(found)
    if alike is not None:
        return (
            f"Step {first.place.step}: the gradients of all {alike} parameters, first {first.place.name!r}, differ "
            f"{ranks}: B's are {first.ratio:.4g} times A's."
        )
    return f"{_capital(where(first.place, found))} {ranks}: {amount(first)}."


def scaled_alike(found: Comparison) -> int | None:
    """Return how many gradients a step has, if all of them differ by one factor; None otherwise."""
    first = found.first
    if (
        first is None
        or first.place.kind != "parameter gradient"
        or not first.ratio
        or not first.is_proportional
    ):
        return None
    same_kind = (first.place.step, first.place.kind)
    differ = [each for each in found.differences if (each.place.step, each.place.kind) == same_kind]
    compared = [place for place in found.errors if (place.step, place.kind) == same_kind]
    alike = all(each.ratio is not None and abs(each.ratio / first.ratio - 1) < 1e-2 for each in differ)
    return len(differ) if alike and len(differ) == len(compared) > 1 else None


def where(place: Place, found: Comparison | None = None) -> str:
    """Return what differs, without how much."""
    form = _DIFFERS.get(place.kind, "step {step}: {what} differs")
    return form.format(step=place.step, what=what(place, found), start=_start(found))


def _start(found: Comparison | None) -> str:
    first = 1 if found is None else found.ours.first_step
    return "before the first step" if first == 1 else f"before step {first}"


def what(place: Place, found: Comparison | None = None) -> str:
    """Return what a value is of."""
    name = repr(place.name)
    if place.kind.startswith(("output", "input")):
        kind = found.ours.modules.get(place.name, "") if found is not None else ""
        name = f"module {name}" if place.name else "the model itself"
        name = f"{name} ({kind})" if kind else name
    return _WHAT[place.kind].format(name=name, item=place.item)


def non_finite(found: Comparison) -> list[str]:
    """Return in a line for each side the first of its values that isn't finite."""
    lines = []
    for side in (found.ours, found.theirs):
        first = found.non_finite.get(side.label)
        if first is not None:
            when = f"step {first.place.step}" if first.place.step else _start(found)
            ranks = ranks_text(first.ranks, side.world_size)
            lines.append(f"Not finite in {side.label}, first, {when}: {what(first.place, found)}, {ranks}.")
    return lines


def amount(difference: Difference) -> str:
    """Return how far the two are apart."""
    if difference.note:
        return difference.note
    if difference.ratio is not None and difference.is_proportional and abs(difference.ratio - 1) > 1e-4:
        return f"B's is {difference.ratio:.4g} times A's"
    if math.isinf(difference.error):
        return "some values of one run aren't finite, or are missing"
    return f"the relative error is {difference.error:.2g}, and rounding comes to {difference.allowed:.2g}"


def downstream(found: Comparison) -> str:
    """Return what differs after the first place."""
    first = found.first
    if first is None:
        return ""
    rest = found.differences[1:]
    in_step = Counter(each.place.kind for each in rest if each.place.step == first.place.step)
    later = [each for each in rest if each.place.step != first.place.step]
    parts = [f"{count} {plural(kind, count)}" for kind, count in in_step.items()]
    if later:
        parts.append(f"{len(later)} values of later steps")
    before = f"{found.equal_before} values before it agree"
    return f"{before}; after it differ {', '.join(parts)}." if parts else f"{before}, and all after it."


@dataclass(frozen=True)
class Said:
    """What is said of a comparison, on a screen and on a page."""

    sentence: str
    downstream: str
    causes: Sequence[str]
    table: Sequence[Sequence[str]]
    """Rows of the first places that differ; the first row has the columns' names."""
    notes: Sequence[str]
    differ: int = 0
    """How many places differ."""
    non_finite: Sequence[str] = ()
    """The first value of each side that isn't finite, in a sentence each."""


def said(found: Comparison) -> Said:
    """Return what is said of two runs."""
    notes = list(dict.fromkeys(found.notes))
    if not found.measured:
        notes.append("rounding is estimated; record A again with --rounding, and pass that record")
    return Said(
        sentence(found),
        downstream(found),
        likely_causes(found),
        _table(found),
        notes,
        len(found.differences),
        non_finite(found),
    )


def report(of: Said) -> str:
    """Return one screen: the sentence, what is downstream, likely causes, and the first places in a table."""
    lines = [of.sentence, *([of.downstream] if of.downstream else []), *of.non_finite]
    if of.causes:
        lines += ["", "Likely causes:", *(f"  - {cause}" for cause in of.causes)]
    if len(of.table) > 1:
        widths = [max(len(row[column]) for row in of.table) for column in range(len(of.table[0]))]
        lines += ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in of.table)]
        more = of.differ - (len(of.table) - 1)
        lines += [f"and {more} more"] if more > 0 else []
    if of.notes:
        shown = of.notes if len(of.notes) <= NOTES else of.notes[:NOTES]
        more = len(of.notes) - len(shown)
        lines += ["", *(f"note: {note}" for note in shown)]
        lines += [f"{more} more notes: see --json"] if more else []
    return "\n".join(lines)


def to_json(found: Comparison) -> dict[str, Any]:
    """Return it as JSON values; docs/guides/diff.md has the keys."""
    return {
        "same": found.first is None,
        "sentence": sentence(found),
        "downstream": downstream(found),
        "causes": likely_causes(found),
        "steps": found.steps,
        "compared": found.compared,
        "rounding": "measured" if found.measured else "estimated",
        "differences": differences_json(found),
        "non_finite": {
            side.label.lower(): _non_finite_json(found.non_finite.get(side.label))
            for side in (found.ours, found.theirs)
        },
        "notes": found.notes,
    }


def _non_finite_json(found: NonFinite | None) -> dict[str, Any] | None:
    if found is None:
        return None
    place = found.place
    return {
        "step": place.step,
        "kind": place.kind,
        "name": place.name,
        "item": place.item,
        "ranks": list(found.ranks),
    }


def differences_json(found: Comparison) -> list[dict[str, Any]]:
    """Return all places that differ as JSON values."""
    return [
        {
            "step": each.place.step,
            "kind": each.place.kind,
            "name": each.place.name,
            "call": each.place.call,
            "item": each.place.item,
            "error": each.error if math.isfinite(each.error) else None,
            "allowed": each.allowed,
            "ratio": each.ratio,
            "ranks": list(each.ranks),
            "mapping": each.how,
            "note": each.note,
        }
        for each in found.differences
    ]


def _table(found: Comparison) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("step", "what", "name", "ranks", "error", "rounding", "ratio")]
    for each in found.differences[:SHOWN]:
        what, name, *numbers = table_cells(each)
        ranks = "all" if len(each.ranks) == found.theirs.world_size else ",".join(map(str, each.ranks))
        rows.append((str(each.place.step), what, name, ranks, *numbers))
    return rows


def table_cells(difference: Difference) -> tuple[str, str, str, str, str]:
    """Return what differs, its name, error, rounding and ratio, as a table shows them."""
    place = difference.place
    name = place.name or "(model)"
    item = f" {place.item}" if place.item and place.kind == "optimizer state" else ""
    return (
        place.kind + item,
        name if len(name) <= 40 else f"…{name[-39:]}",
        f"{difference.error:.1e}" if math.isfinite(difference.error) else "-",
        f"{difference.allowed:.1e}",
        "-" if difference.ratio is None else f"{difference.ratio:.4g}",
    )


def plural(kind: str, count: int) -> str:
    """Return what values of a kind are called."""
    one, several = {
        "start": ("initial value", "initial values"),
        "output": ("forward value", "forward values"),
        "output gradient": ("gradient of a value", "gradients of values"),
        "parameter gradient": ("gradient of a parameter", "gradients of parameters"),
        "optimizer state": ("optimizer state", "optimizer states"),
        "parameter": ("updated parameter", "updated parameters"),
        "buffer": ("buffer", "buffers"),
    }[kind]
    return one if count == 1 else several


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
