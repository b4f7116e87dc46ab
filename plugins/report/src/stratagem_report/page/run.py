"""The sections about one run: its time, speed, steps, ranks and plan."""

from __future__ import annotations

from typing import NamedTuple

from stratagem.errors import bytes_text
from stratagem_report.goodput import PARTS
from stratagem_report.page.charts import Chart, Line
from stratagem_report.page.drawn import bar, card
from stratagem_report.page.ranks import MOST_RANKS, ranks_section
from stratagem_report.page.sentences import memory_of
from stratagem_report.page.text import duration, escape, percent
from stratagem_report.page.timeline import COLORS, lanes_of, timeline, windows
from stratagem_report.phases import PHASES
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


class RunCharts(NamedTuple):
    """Charts of one run, in addition to its metrics."""

    through: list[Chart]
    """Speed, and shares of the time, over the run."""
    memory: list[Chart]


def run_sections(summary: Summary, charts: RunCharts) -> str:
    """Return everything below the metrics.

    Args:
        summary: of the run.
        charts: the charts to place in the sections.
    """
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
            _through(charts.through),
            steps,
            ranks_section(summary),
            _memory(summary, charts.memory),
            _plan(summary),
        )
    )


def run_charts(summary: Summary, prefix: str) -> RunCharts:
    """Return the charts that `run_sections` places.

    Args:
        summary: of the run.
        prefix: of the charts' keys; different for each run of a page.
    """
    return RunCharts(_throughput_charts(summary, prefix), _memory_charts(summary, prefix))


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


def _throughput_charts(summary: Summary, prefix: str) -> list[Chart]:
    buckets = in_buckets(summary.run.attempts[-1])
    times = [buckets.span_s * (index + 0.5) for index in range(len(buckets.steps_per_s))]
    charts = []
    for name, values in (("steps/s", buckets.steps_per_s), ("samples/s, all ranks", buckets.samples_per_s)):
        if any(values):
            line = Line(name, "run0", list(zip(times, values)))
            charts.append(Chart(f"{prefix} {name}", name, [line], over="seconds", from_zero=True))
    seen = [phase for phase in range(len(PHASES)) if any(share[phase] for share in buckets.phase_shares)]
    lines = [
        Line(
            PHASES[phase],
            COLORS[phase],
            [(at, share[phase]) for at, share in zip(times, buckets.phase_shares)],
        )
        for phase in seen
    ]
    title = "shares of the time, all ranks"
    return [*charts, Chart(f"{prefix} shares", title, lines, unit="%", over="seconds", stacked=True)]


def _memory_charts(summary: Summary, prefix: str) -> list[Chart]:
    found = memory_of(summary)
    if found is None:
        return []
    name, peaks = found
    ranks = summary.run.attempts[-1]
    chosen = sorted(sorted(range(len(ranks)), key=lambda index: -peaks[index])[:6])
    unit, size = ("GiB", 2**30) if max(peaks) >= 2**31 else ("MiB", 2**20)
    lines = [
        Line(
            f"rank {ranks[index].rank}",
            f"run{position}",
            [(at / 1e9, memory[f"{name}_bytes"] / size) for at, memory in ranks[index].memory],
        )
        for position, index in enumerate(chosen)
    ]
    few = f", the {len(chosen)} ranks with the most" if len(chosen) < len(ranks) else ""
    return [
        Chart(f"{prefix} memory", f"{name} memory{few}", lines, unit=unit, over="seconds", from_zero=True)
    ]


def _through(charts: list[Chart]) -> str:
    return f'<h2>Through the run</h2><div class="charts">{"".join(map(card, charts))}</div>'


def _memory(summary: Summary, charts: list[Chart]) -> str:
    found = memory_of(summary)
    if found is None:
        return ""
    rows = "".join(
        f"<tr><td>{rank.rank}</td><td>{bytes_text(peak)}</td></tr>"
        for rank, peak in list(zip(summary.ranks, found[1]))[:MOST_RANKS]
    )
    drawn = "".join(map(card, charts))
    return (
        f'<h2>Memory</h2><div class="charts">{drawn}'
        f'<div class="card"><table><tr><th>rank</th><th>most, as sampled once a second</th></tr>{rows}</table>'
        "</div></div>"
    )


def _plan(summary: Summary) -> str:
    header = summary.run.attempts[-1][0].header
    nodes = len({rank.header.get("node_rank") for rank in summary.run.attempts[-1]})
    rows = [["processes", f"{len(summary.ranks)}", f"on {nodes} node{'s' * (nodes != 1)}"]]
    rows += summary.run.plan
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
