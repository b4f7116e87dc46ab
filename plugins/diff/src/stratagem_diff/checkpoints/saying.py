"""What a comparison of two checkpoints says."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stratagem_diff.causes import OF_VALUES, likely_causes
from stratagem_diff.checkpoints.comparing import CheckpointComparison
from stratagem_diff.files import Place
from stratagem_diff.sentences import SHOWN, Said, amount, differences_json, plural, table_cells

_KINDS = {"parameter": ("parameter", "parameters")}
"""What isn't called as in a comparison of runs, where it is an updated parameter."""


def said(found: CheckpointComparison) -> Said:
    """Return what is said of two checkpoints."""
    rows: list[tuple[str, ...]] = [("what", "name", "error", "rounding", "ratio")]
    rows += [table_cells(each) for each in found.differences[:SHOWN]]
    return Said(
        sentence(found),
        downstream(found),
        causes(found),
        rows,
        list(dict.fromkeys(found.notes)),
        len(found.differences),
    )


def sentence(found: CheckpointComparison) -> str:
    """Return one sentence: the first tensor that differs, or how equal the checkpoints are."""
    first, tensors = found.first, f"{found.compared} tensors"
    if first is not None:
        how = "isn't equal to the bit" if found.exact else "differs beyond rounding"
        return f"{_what(first.place)} is the first of {tensors} that {how}: {amount(first)}."
    if not found.within_rounding:
        return f"The checkpoints are equal to the bit: {tensors}."
    worst = max(found.within_rounding, key=lambda each: each.error)
    what = _what(worst.place)
    return (
        f"The checkpoints agree within rounding: {len(found.within_rounding)} of {tensors} aren't equal to the bit, "
        f"and the largest relative error is {worst.error:.2g}, of {what[0].lower()}{what[1:]}."
    )


def downstream(found: CheckpointComparison) -> str:
    """Return how many tensors are equal, and what differs after the first one."""
    if found.first is None:
        return ""
    equal = f"{found.equal} tensors are equal to the bit"
    if found.within_rounding:
        equal += f", {len(found.within_rounding)} within rounding"
    kinds = Counter(each.place.kind for each in found.differences[1:])
    rest = ", ".join(f"{count} {_plural(kind, count)}" for kind, count in kinds.items())
    return f"{equal}; {f'after it differ {rest}' if rest else 'it is the only one that differs'}."


def causes(found: CheckpointComparison) -> list[str]:
    """Return what the first difference usually comes from."""
    return list(dict.fromkeys([*found.first_causes, *likely_causes(found, OF_VALUES)]))


def to_json(found: CheckpointComparison) -> dict[str, Any]:
    """Return it as JSON values; docs/guides/diff.md has the keys."""
    return {
        "same": found.first is None,
        "sentence": sentence(found),
        "downstream": downstream(found),
        "causes": causes(found),
        "compared": found.compared,
        "equal_to_the_bit": found.equal,
        "within_rounding": len(found.within_rounding),
        "differences": [
            {key: each[key] for key in ("kind", "name", "item", "error", "allowed", "ratio", "note")}
            for each in differences_json(found)
        ],
        "notes": found.notes,
    }


def _what(place: Place) -> str:
    if place.item:
        return f"The optimizer's {place.item!r} of {place.name!r}"
    return f"{place.kind.capitalize()} {place.name!r}"


def _plural(kind: str, count: int) -> str:
    return _KINDS[kind][count != 1] if kind in _KINDS else plural(kind, count)
