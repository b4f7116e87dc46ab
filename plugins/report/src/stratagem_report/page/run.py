"""The sections of one run: where its time went, its speed, its steps, its ranks, its plan."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem_report.goodput import PARTS
from stratagem_report.page.charts import Line, bar, key, line_chart, stacked_chart
from stratagem_report.page.ranks import MOST_RANKS, ranks_section
from stratagem_report.page.text import bytes_text, duration, escape, number, percent
from stratagem_report.page.timeline import COLORS, lanes_of, timeline, windows
from stratagem_report.phases import PHASES
from stratagem_report.reading import RankRecord
from stratagem_report.summary import Summary, in_buckets

PART_COLORS = {
    "compute": "backward",
    "communication": "communication",
    "waiting for data": "data",
    "other": "other",
    "validation": "validation",
    "checkpoints": "checkpoint",
    "start and end": "start",
    "loading": "load",
    "lost work": "lost",
    "restarts": "restart",
}
MEMORY_NAMES = ("allocated_bytes", "resident_bytes")
"""Which of a rank's figures is shown first, where it is there: the device's before the host's."""


def run_sections(summary: Summary) -> str:
    """Return everything below the metrics."""
    ranks = summary.run.attempts[-1]
    shown = lanes_of([rank.own_ns for rank in summary.ranks])
    drawn = "".join(timeline(ranks, window, shown) for window in windows(ranks))
    note = ""
    if len(shown) < len(ranks):
        note = (
            f'<p class="note">Of {len(ranks)} ranks, the {len(shown) // 2} slowest and as many fastest.</p>'
        )
    order = (
        '<p class="note">Within a step, what a record has is how long each phase took; phases are drawn in the order '
        "in which they usually come.</p>"
    )
    steps = f"<h2>Steps</h2>{drawn}{note}{order}" if drawn else ""
    return "".join(
        (
            _goodput(summary),
            _throughput(ranks),
            steps,
            ranks_section(summary),
            _memory(summary),
            _plan(summary),
        )
    )


def memory_of(summary: Summary) -> tuple[str, list[int]] | None:
    """Return the name of the memory that matters on these devices, and each rank's peak; None where unknown."""
    for name in MEMORY_NAMES:
        if all(name in rank.peak_bytes for rank in summary.ranks):
            return name.removesuffix("_bytes"), [rank.peak_bytes[name] for rank in summary.ranks]
    return None


def _goodput(summary: Summary) -> str:
    parts, wall = summary.goodput.parts, summary.goodput.wall_s or 1.0
    present = [name for name in PARTS if parts[name] > 0]
    rows = "".join(
        f'<tr><td><i class="swatch" style="background:var(--{PART_COLORS[name]})"></i>{name}</td>'
        f"<td>{duration(parts[name])}</td><td>{percent(parts[name] / wall)}</td></tr>"
        for name in present
    )
    total = f"<tr><td><b>wall time</b></td><td><b>{duration(wall)}</b></td><td><b>100 %</b></td></tr>"
    divided = bar(
        (f"{name} {percent(parts[name] / wall)}", PART_COLORS[name], parts[name] / wall) for name in present
    )
    return (
        f'<h2>Where the time went</h2><div class="card">{divided}<table class="goodput">{rows}{total}</table>'
        '<p class="note">The mean over ranks. Compute is forward, backward and optimizer.</p></div>'
    )


def _throughput(ranks: Sequence[RankRecord]) -> str:
    buckets = in_buckets(ranks)
    times = [buckets.span_s * (index + 0.5) for index in range(len(buckets.steps_per_s))]
    charts = []
    for name, values in (("steps/s", buckets.steps_per_s), ("samples/s, all ranks", buckets.samples_per_s)):
        if any(values):
            chart = line_chart(
                [Line(name, "run0", list(zip(times, values)))], x_text=duration, from_zero=True
            )
            charts.append(f'<div class="card"><h3>{name}</h3>{chart}</div>')
    seen = [phase for phase in range(len(PHASES)) if any(share[phase] for share in buckets.phase_shares)]
    columns = [[(COLORS[phase], share[phase]) for phase in seen] for share in buckets.phase_shares]
    stacked = stacked_chart(columns, buckets.span_s * len(columns), duration)
    legend = key(dict.fromkeys((PHASES[p] if p != PHASES.index("end") else "start", COLORS[p]) for p in seen))
    return (
        f'<h2>Through the run</h2><div class="charts">{"".join(charts)}'
        f'<div class="card"><h3>shares of the time, all ranks</h3>{stacked}{legend}</div></div>'
    )


def _memory(summary: Summary) -> str:
    found = memory_of(summary)
    if found is None:
        return ""
    name, peaks = found
    ranks = summary.run.attempts[-1]
    chosen = sorted(range(len(ranks)), key=lambda index: -peaks[index])[:6]
    unit, size = ("GiB", 2**30) if max(peaks) >= 2**31 else ("MiB", 2**20)
    lines = [
        Line(
            f"rank {ranks[index].rank}",
            f"run{position}",
            [(at / 1e9, memory[f"{name}_bytes"] / size) for at, memory in ranks[index].memory],
        )
        for position, index in enumerate(sorted(chosen))
    ]
    rows = "".join(
        f"<tr><td>{rank.rank}</td><td>{bytes_text(peak)}</td></tr>"
        for rank, peak in list(zip(summary.ranks, peaks))[:MOST_RANKS]
    )
    legend = key((line.label, line.color) for line in lines)
    few = f", the {len(chosen)} ranks with the most" if len(chosen) < len(ranks) else ""
    chart = line_chart(lines, x_text=duration, y_text=lambda value: f"{number(value)} {unit}", from_zero=True)
    return (
        f'<h2>Memory</h2><div class="charts"><div class="card"><h3>{escape(name)} memory{few}</h3>'
        f"{chart}{legend}</div>"
        f'<div class="card"><table><tr><th>rank</th><th>most, as sampled once a second</th></tr>{rows}</table>'
        "</div></div>"
    )


def _plan(summary: Summary) -> str:
    header = summary.run.attempts[-1][0].header
    nodes = len({rank.header.get("node_rank") for rank in summary.run.attempts[-1]})
    rows = [["processes", f"{len(summary.ranks)}", f"on {nodes} node{'s' * (nodes != 1)}"]]
    rows += [list(map(str, row)) for row in header.get("plan", [])]
    rows.append(["torch", str(header.get("torch", "")), ""])
    drawn = "".join(
        f'<tr><td>{escape(kind)}</td><td class="text">{escape(name)}</td><td class="text">{escape(why)}</td></tr>'
        for kind, name, why in rows
    )
    attempts = len(summary.run.attempts)
    note = ""
    if attempts > 1:
        note = f'<p class="note">Of the last of {attempts} attempts, as are steps and ranks.</p>'
    return f'<h2>Plan</h2><div class="card wide"><table>{drawn}</table>{note}</div>'
