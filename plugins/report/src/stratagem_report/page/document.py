"""The page: a single HTML file, for one or several runs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.metadata import metadata
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stratagem.errors import bytes_text
from stratagem_report.advice import advice
from stratagem_report.page.charts import Chart, Line
from stratagem_report.page.drawn import card, key
from stratagem_report.page.run import RunCharts, run_charts, run_sections
from stratagem_report.page.sentences import fastest, memory_of, warnings, words
from stratagem_report.page.text import duration, number, percent
from stratagem_report.summary import Summary, mean_device_ns

RUN_COLORS = ("run0", "run1", "run2", "run3", "run4", "run5")
MOST_CURVES = 24
"""Maximum number of metrics with a chart."""


def document(summaries: Sequence[Summary], *, live: bool = False) -> str:
    """Return the page of some runs.

    Args:
        summaries: of one or several runs with different names.
        live: whether an open page refreshes itself.
    """
    templates = Environment(
        loader=PackageLoader("stratagem_report.page", "templates"), autoescape=True, undefined=StrictUndefined
    )
    names = [summary.run.name for summary in summaries]
    script = _asset("uplot/uPlot.iife.min.js") + _asset("charts.js") + (_asset("live.js") if live else "")
    metrics = _metric_charts(summaries)
    of_runs = [run_charts(summary, f"run {index}") for index, summary in enumerate(summaries)]
    charts = [*metrics[:MOST_CURVES], *(chart for run in of_runs for part in run for chart in part)]
    return templates.get_template("page.html").render(
        title=names[0] if len(names) == 1 else f"{len(names)} runs",
        live=live,
        policy=_policy(script, live),
        style=Markup(_asset("uplot/uPlot.min.css") + _asset("style.css")),
        script=Markup(script),
        charts={chart.key: chart.data() for chart in charts},
        metrics=[Markup(card(chart)) for chart in metrics[:MOST_CURVES]],
        more_metrics=max(0, len(metrics) - MOST_CURVES),
        run_key=Markup(key((name, _color(index)) for index, name in enumerate(names))),
        runs=[_run(summary, drawn) for summary, drawn in zip(summaries, of_runs)],
        fastest=fastest(summaries) if len(summaries) > 1 else "",
        settings=_settings(summaries),
        measured=any(mean_device_ns(summary) is not None for summary in summaries),
        site=_site(),
    )


def _run(summary: Summary, charts: RunCharts) -> dict[str, Any]:
    """Return one run's values for the template."""
    memory = memory_of(summary)
    return {
        "name": summary.run.name,
        "words": words(summary),
        "warnings": warnings(summary),
        "advice": advice(summary),
        "strategy": summary.run.strategy,
        "ranks": len(summary.ranks),
        "steps": f"{summary.steps:,}",
        "wall": duration(summary.goodput.wall_s),
        "trained": percent(summary.goodput.share),
        "steps_per_s": number(summary.steps_per_s),
        "samples_per_s": "" if summary.samples_per_s is None else number(summary.samples_per_s),
        "memory": "" if memory is None else bytes_text(max(memory[1])),
        "sections": Markup(run_sections(summary, charts)),
    }


def _settings(summaries: Sequence[Summary]) -> list[tuple[str, list[str], bool]]:
    """Return (setting, its value in each run, whether the values differ), with differing settings first."""
    every = [summary.run.settings for summary in summaries]
    names = dict.fromkeys(name for settings in every for name in settings)
    rows = [(name, [settings.get(name, "") for settings in every]) for name in names]
    return sorted(
        ((name, values, len(set(values)) > 1) for name, values in rows),
        key=lambda row: (not row[2], not row[0].startswith("model.")),
    )


def _metric_charts(summaries: Sequence[Summary]) -> list[Chart]:
    """Return a chart for each metric, with a line for each run that logged it."""
    charts = []
    for name in dict.fromkeys(name for summary in summaries for name in summary.run.metrics):
        having = [
            (index, summary.run) for index, summary in enumerate(summaries) if name in summary.run.metrics
        ]
        lines = [Line(run.name, _color(index), run.metrics[name]) for index, run in having]
        last = ", ".join(number(line.points[-1][1], 4) for line in lines if line.points)
        odd = sorted(step for _, run in having for step in run.not_drawn.get(name, ()))
        notes = [f"last: {last}"] if last else []
        if odd:
            values = "1 value isn't" if len(odd) == 1 else f"{len(odd):,} values aren't"
            notes.append(f"{values} drawn: inf, nan or too large, at step {odd[0]:,.0f} first")
        charts.append(Chart(f"metric {name}", name, lines, note="; ".join(notes)))
    return charts


def _color(index: int) -> str:
    return RUN_COLORS[index % len(RUN_COLORS)]


def _asset(name: str) -> str:
    return (files("stratagem_report.page") / "assets" / name).read_text(encoding="utf-8")


def _policy(script: str, live: bool) -> str:
    """Return the page's Content-Security-Policy: only our script runs, and nothing else is loaded."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        f"form-action 'none'{own}"
    )


def _site() -> str:
    """Return the address of the documentation from the distribution's metadata; empty if it has none."""
    urls = (each.partition(", ") for each in metadata("stratagem-report").get_all("Project-URL") or ())
    return next((url.rstrip("/") for label, _, url in urls if label == "Documentation"), "")
