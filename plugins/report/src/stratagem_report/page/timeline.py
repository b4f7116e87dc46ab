"""A timeline with the steps of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stratagem_report.page.drawn import key, x_axis
from stratagem_report.page.text import duration, escape
from stratagem_report.phases import PHASES, START
from stratagem_report.reading import RankRecord, Row
from stratagem_report.summary import WARM_UP

COLORS: tuple[str, ...] = (
    "data",
    "forward",
    "backward",
    "both",
    "communication",
    "optimizer",
    "other",
    "start",
    "validation",
    "checkpoint",
    "load",
    "start",
)
"""Phase → name of a CSS variable."""
MOST_LANES = 16
"""Maximum number of ranks to draw. Of more ranks, the slowest and the fastest are drawn."""
TYPICAL, AROUND = 10, 2
"""Number of steps in the typical window, and on each side of the longest step."""


class Window(NamedTuple):
    """A range of rows, the same for each rank."""

    title: str
    note: str
    first: int
    last: int
    """Indices of the first and last row, both included."""


def windows(ranks: Sequence[RankRecord]) -> list[Window]:
    """Choose what to draw: steps from the middle, and the longest step with its neighbours."""
    last = min(len(rank.rows) for rank in ranks)
    rows = ranks[0].rows[:last]
    single = [index for index, row in enumerate(rows) if row.steps == 1][WARM_UP:]
    if not single:
        return []
    usual = [index for index in single if not any(rows[index].ns[START:])]
    middle = single[len(single) // 2]
    first = min(usual or single, key=lambda index: (-_run_length(usual, index), abs(index - middle)))
    found = [
        Window("Steps from the middle of the run", "", first, first + max(1, _run_length(usual, first)) - 1)
    ]
    longest = max(single, key=lambda index: rows[index].total_ns)
    if longest not in range(found[0].first, found[0].last + 1):
        number = sum(row.steps for row in rows[: longest + 1])
        note = f"Step {number:,} took the longest: {duration(rows[longest].total_ns / 1e9)}."
        low, high = max(single[0], longest - AROUND), min(longest + AROUND, single[-1])
        found.append(Window("The longest step and its neighbours", note, low, high))
    return found


def _run_length(indices: Sequence[int], first: int) -> int:
    """Return how many of `indices` are consecutive from `first` on, at most `TYPICAL`."""
    known = frozenset(indices)
    return next((length for length in range(TYPICAL) if first + length not in known), TYPICAL)


def timeline(ranks: Sequence[RankRecord], window: Window, shown: Sequence[int]) -> str:
    """Return lanes of the ranks `shown` (indices). A step's phases are drawn in their usual order."""
    chosen = [(ranks[index], ranks[index].rows[window.first : window.last + 1]) for index in shown]
    origin = min(begin_s(rank, rows[0]) for rank, rows in chosen)
    span = max(end_s(rank, rows[-1]) for rank, rows in chosen) - origin or 1e-9
    lanes, seen = [], set()
    for rank, rows in chosen:
        drawn = []
        for row in rows:
            at = begin_s(rank, row) - origin
            drawn.append(f'<u style="left:{100 * at / span:.3f}%"></u>')
            for phase, ns in enumerate(row.ns):
                if ns / 1e9 < span / 3000:
                    at += ns / 1e9
                    continue
                seen.add(phase)
                drawn.append(
                    f'<i style="left:{100 * at / span:.3f}%;width:{100 * ns / 1e9 / span:.3f}%;'
                    f'background:var(--{COLORS[phase]})" title="{PHASES[phase]} {duration(ns / 1e9)}"></i>'
                )
                at += ns / 1e9
        lanes.append(f'<span>rank {rank.rank}</span><div class="lane">{"".join(drawn)}</div>')
    entries = [(PHASES[phase], COLORS[phase]) for phase in sorted(seen)]
    note = f'<p class="note">{escape(window.note)}</p>' if window.note else ""
    axis = x_axis(0.0, span, duration)
    return (
        f'<div class="card timeline"><h3>{escape(window.title)}</h3>{note}'
        f'<div class="lanes">{"".join(lanes)}{axis}</div>{key(entries)}</div>'
    )


def begin_s(rank: RankRecord, row: Row) -> float:
    """Return when a row begins, in seconds since 1970."""
    return rank.began + (row.end_ns - row.total_ns) / 1e9


def end_s(rank: RankRecord, row: Row) -> float:
    """Return when a row ends, in seconds since 1970."""
    return rank.began + row.end_ns / 1e9


def lanes_of(own_ns: Sequence[float]) -> list[int]:
    """Return the indices of the ranks to draw: all, or the slowest and the fastest."""
    order = sorted(range(len(own_ns)), key=lambda index: own_ns[index])
    if len(order) > MOST_LANES:
        order = order[: MOST_LANES // 2] + order[-MOST_LANES // 2 :]
    return sorted(order)
