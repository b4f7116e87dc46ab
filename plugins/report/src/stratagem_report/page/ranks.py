"""A step on each rank: by the host's clock, and by the device's events if they are measured."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem_report.page.drawn import key
from stratagem_report.page.text import escape, milliseconds, plural
from stratagem_report.page.timeline import COLORS, lanes_of
from stratagem_report.phases import OTHER, PHASES
from stratagem_report.summary import RankSummary, Summary

MOST_RANKS = 64
"""Maximum number of rows in the table of ranks."""


def ranks_section(summary: Summary) -> str:
    """Return lanes and a table with the phases of each rank's step."""
    ranks = summary.ranks
    seen = [
        phase
        for phase in range(OTHER + 1)
        if any(ns[phase] > 0 for rank in ranks for ns in (rank.step_ns, rank.device_ns) if ns is not None)
    ]
    longest = max(max(sum(rank.step_ns), sum(rank.device_ns or ())) for rank in ranks) or 1.0
    lanes = []
    for index in lanes_of([rank.own_ns for rank in ranks]):
        rank = ranks[index]
        lanes.append(_lane(f"rank {rank.rank}", rank.step_ns, seen, longest))
        if rank.device_ns is not None:
            lanes.append(_lane("on the device", rank.device_ns, seen, longest))
    return (
        f'<h2>A step on each rank</h2><div class="card"><div class="lanes">{"".join(lanes)}</div>'
        f"{key((PHASES[phase], COLORS[phase]) for phase in seen)}</div>"
        f'<div class="card">{_table(summary, seen)}<p class="note">Milliseconds per step: means, and the median of '
        f"a rank's own work, which is all but communication.</p>{_clocks(ranks)}</div>"
    )


def _lane(label: str, ns: Sequence[float], seen: Sequence[int], longest: float) -> str:
    parts, at = [], 0.0
    for phase in seen:
        share = 100 * ns[phase] / longest
        parts.append(
            f'<i style="left:{at:.3f}%;width:{share:.3f}%;background:var(--{COLORS[phase]})" '
            f'title="{PHASES[phase]} {milliseconds(ns[phase])} ms"></i>'
        )
        at += share
    return f'<span>{label}</span><div class="lane">{"".join(parts)}</div>'


def _table(summary: Summary, seen: Sequence[int]) -> str:
    ranks = summary.ranks
    measured = any(rank.device_ns is not None for rank in ranks)
    slow = {each.rank for each in summary.slow}
    rows = []
    for index, rank in enumerate(ranks[:MOST_RANKS]):
        cells = []
        for phase in seen:
            cells.append(f"<td>{milliseconds(rank.step_ns[phase])}</td>")
            if measured:
                took = "" if rank.device_ns is None else milliseconds(rank.device_ns[phase])
                cells.append(f'<td class="soft">{took}</td>')
        mark = ' class="slow-rank"' if index in slow else ""
        rows.append(
            f"<tr{mark}><td>{rank.rank}</td>{''.join(cells)}<td>{milliseconds(rank.own_ns)}</td>"
            f'<td class="text">{escape(rank.device)} on {escape(rank.host)}</td></tr>'
        )
    last = '<th>own work</th><th class="text">device</th>'
    if measured:
        heads = "".join(f'<th colspan="2">{PHASES[phase]}</th>' for phase in seen)
        clocks = "<th>host</th><th>device</th>" * len(seen)
        head = f'<tr><th>rank</th>{heads}{last}</tr><tr><th></th>{clocks}<th>host</th><th class="text"></th></tr>'
    else:
        heads = "".join(f"<th>{PHASES[phase]}</th>" for phase in seen)
        head = f"<tr><th>rank</th>{heads}{last}</tr>"
    more = len(ranks) - MOST_RANKS
    note = f'<p class="note">{more} more ranks are in the record.</p>' if more > 0 else ""
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>{note}'


def _clocks(ranks: Sequence[RankSummary]) -> str:
    """Explain the host's and the device's times; empty if there are only the host's."""
    counts = sorted(rank.device_samples for rank in ranks if rank.device_ns is not None)
    if not counts:
        return ""
    sampled = plural(counts[-1], "sampled step")
    if counts[0] != counts[-1]:
        sampled = f"{counts[0]:,} to {sampled}"
    return (
        '<p class="note">A rank\'s times are those of the host, which queues the work of each phase and waits where '
        "it has to. On the device, a phase begins when all work queued before it is done, and ends when the work "
        f"queued in it is done; that includes idle time. These are means over {sampled}, by device events.</p>"
    )
