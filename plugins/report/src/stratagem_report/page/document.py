"""The page: one HTML file without any other, for one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from stratagem_report.page.charts import Line, key, line_chart
from stratagem_report.page.run import memory_of, run_sections
from stratagem_report.page.text import bytes_text, duration, escape, number, percent, plural
from stratagem_report.phases import PHASES
from stratagem_report.summary import Summary, mean_device_ns

RUN_COLORS = ("run0", "run1", "run2", "run3", "run4", "run5")
MOST_CURVES = 24
"""Metrics that are drawn."""


def document(summaries: Sequence[Summary]) -> str:
    """Return the page of some runs.

    Args:
        summaries: of one or several runs, with different names.
    """
    names = [summary.run.name for summary in summaries]
    style = (files("stratagem_report.page") / "style.css").read_text(encoding="utf-8")
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    body = [f"<h1>{escape(title)}</h1>"]
    if len(summaries) == 1:
        body += [_words(summaries[0]), _warnings(summaries[0]), _figures(summaries[0])]
    else:
        body += [_fastest(summaries), _comparison(summaries), *map(_warnings, summaries)]
    body.append(_curves(summaries))
    for summary in summaries:
        if len(summaries) > 1:
            body.append(f"<h2>{escape(summary.run.name)}</h2>{_words(summary)}")
        body.append(run_sections(summary))
    measured = any(mean_device_ns(summary) is not None for summary in summaries)
    but = ", but those on the device" if measured else ""
    body.append(
        f"<footer>Times are the host's{but}: where a device is asynchronous, the host's wait for it counts where the "
        "host waits. Communication is what the loop waits for: the wait at a backward's end, and the run's "
        "collectives; what overlaps with a backward, or happens within a strategy's forward or step, isn't in "
        "it.</footer>"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Stratagem report</title><style>{style}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def words(summary: Summary) -> list[str]:
    """Return what there is to say of a run first, in sentences."""
    parts, wall = summary.goodput.parts, summary.goodput.wall_s
    world = len(summary.ranks)
    speed = f"{number(summary.steps_per_s)} steps/s"
    if summary.samples_per_s is not None:
        speed += f", {number(summary.samples_per_s)} samples/s over all ranks"
    rest = sorted(((s, name) for name, s in parts.items() if name != "compute" and s > 0), reverse=True)[:3]
    spent = ", ".join(f"{percent(seconds / wall)} {name}" for seconds, name in rest if wall)
    sentences = [
        f"{plural(summary.steps, 'step')} on {plural(world, 'rank')} in {duration(wall)}: {speed} while it trained. "
        f"The run {summary.outcome}.",
        f"{percent(summary.goodput.share)} of the time trained the model" + (f"; {spent}." if spent else "."),
    ]
    if (memory := memory_of(summary)) is not None:
        name, peaks = memory
        most = max(range(len(peaks)), key=lambda index: peaks[index])
        sentences.append(
            f"At most {bytes_text(peaks[most])} {name} on a rank"
            + (f" (rank {summary.ranks[most].rank})." if world > 1 else ".")
        )
    return sentences + _device_words(summary)


def _device_words(summary: Summary) -> list[str]:
    """Say what a step took the devices, or that it isn't known; nothing of CPUs."""
    sentences = []
    if (took := mean_device_ns(summary)) is not None:
        order = sorted((phase for phase, ns in enumerate(took) if ns > 0), key=lambda phase: -took[phase])
        parts = ", ".join(f"{duration(took[phase] / 1e9)} {PHASES[phase]}" for phase in order)
        sentences.append(f"On the device, a step takes {duration(sum(took) / 1e9)}: {parts}.")
    untimed = [rank for rank in summary.ranks if rank.untimed is not None]
    if untimed:
        which = "" if len(untimed) == len(summary.ranks) else f" of {plural(len(untimed), 'rank')}"
        sentences.append(
            f"The phases{which} are the host's: what the device takes for each isn't measured ({untimed[0].untimed})."
        )
    return sentences


def warnings(summary: Summary) -> list[str]:
    """Return a sentence for each slow rank."""
    slow = {each.rank: f"{100 * (each.ratio - 1):.0f} %" for each in summary.slow}
    sentences = [
        f"rank {summary.ranks[each.rank].rank} is {slow[each.rank]} slower than the others: its own work takes "
        f"{duration(each.own_ns / 1e9)} a step, and theirs {duration(each.others_ns / 1e9)}"
        for each in summary.slow
    ]
    for event in summary.told:
        if event["rank"] not in slow:
            ratio = float(str(event["ratio"]))
            sentences.append(
                f"rank {event['rank']} was {100 * (ratio - 1):.0f} % slower than the others at step "
                f"{event['at_step']}, most of it in {event['phase']}"
            )
    return sentences


def _words(summary: Summary) -> str:
    return f'<div class="card summary">{"".join(f"<p>{escape(line)}</p>" for line in words(summary))}</div>'


def _warnings(summary: Summary) -> str:
    lines = warnings(summary)
    if not lines:
        return ""
    drawn = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f'<div class="card slow"><p><b>Slow ranks in {escape(summary.run.name)}</b></p>{drawn}</div>'


def _figures(summary: Summary) -> str:
    figures = [
        (percent(summary.goodput.share), "of the time trained the model"),
        (number(summary.steps_per_s), "steps/s while it trained"),
    ]
    if summary.samples_per_s is not None:
        figures.append((number(summary.samples_per_s), "samples/s over all ranks"))
    figures += [(duration(summary.goodput.wall_s), "wall time"), (f"{summary.steps:,}", "steps")]
    drawn = "".join(
        f'<div class="figure"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for value, label in figures
    )
    return f'<div class="figures">{drawn}</div>'


def _fastest(summaries: Sequence[Summary]) -> str:
    """Say which run trained fastest, by samples where all tell."""
    unit = "samples/s" if all(summary.samples_per_s is not None for summary in summaries) else "steps/s"
    speeds = [
        (summary.samples_per_s if unit == "samples/s" else None) or summary.steps_per_s
        for summary in summaries
    ]
    order = sorted(range(len(speeds)), key=lambda index: -speeds[index])
    first, rest = order[0], order[1:]
    than = ", ".join(
        f"{number(speeds[first] / speeds[index])} × {summaries[index].run.name}"
        for index in rest
        if speeds[index]
    )
    text = f"{summaries[first].run.name} trained fastest: {number(speeds[first])} {unit}"
    return f'<div class="card summary"><p>{escape(f"{text}, {than}." if than else f"{text}.")}</p></div>'


def _comparison(summaries: Sequence[Summary]) -> str:
    rows = []
    for summary in summaries:
        memory = memory_of(summary)
        plan = {row[0]: row[1] for row in summary.run.attempts[-1][0].header.get("plan", [])}
        cells = [
            f'<td class="text">{escape(summary.run.name)}</td>',
            f"<td>{escape(plan.get('strategy', ''))}</td>",
            f"<td>{len(summary.ranks)}</td>",
            f"<td>{summary.steps:,}</td>",
            f"<td>{duration(summary.goodput.wall_s)}</td>",
            f"<td>{percent(summary.goodput.share)}</td>",
            f"<td>{number(summary.steps_per_s)}</td>",
            f"<td>{number(summary.samples_per_s) if summary.samples_per_s is not None else ''}</td>",
            f"<td>{bytes_text(max(memory[1])) if memory is not None else ''}</td>",
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    heads = ("strategy", "ranks", "steps", "wall time", "trained", "steps/s", "samples/s", "memory, a rank")
    head = '<th class="text">run</th>' + "".join(f"<th>{head}</th>" for head in heads)
    return f'<div class="card wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _curves(summaries: Sequence[Summary]) -> str:
    names = list(dict.fromkeys(name for summary in summaries for name in summary.run.metrics))
    if not names:
        return '<h2>Metrics</h2><p class="soft">No metrics.csv with values in the run folder.</p>'
    charts = []
    for name in names[:MOST_CURVES]:
        lines = [
            Line(summary.run.name, RUN_COLORS[index % len(RUN_COLORS)], summary.run.metrics[name])
            for index, summary in enumerate(summaries)
            if name in summary.run.metrics
        ]
        last = ", ".join(number(line.points[-1][1], 4) for line in lines)
        charts.append(
            f'<div class="card"><h3>{escape(name)}</h3><p class="note">last: {escape(last)}</p>'
            f"{line_chart(lines, x_text=_step)}</div>"
        )
    more = len(names) - MOST_CURVES
    note = f'<p class="note">{more} more metrics are in metrics.csv.</p>' if more > 0 else ""
    legend = ""
    if len(summaries) > 1:
        legend = key(
            (summary.run.name, RUN_COLORS[index % len(RUN_COLORS)]) for index, summary in enumerate(summaries)
        )
    return f'<h2>Metrics</h2>{legend}<div class="charts">{"".join(charts)}</div>{note}'


def _step(value: float) -> str:
    return f"step {value:,.0f}"
