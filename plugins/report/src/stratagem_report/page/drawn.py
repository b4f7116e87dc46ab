"""Parts of the page that need only HTML: places for charts, bars, colour keys, an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stratagem_report.page.charts import Chart
from stratagem_report.page.text import escape


def card(chart: Chart) -> str:
    """Return the place of a chart. The page's script draws the chart there."""
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    has_points = any(line.points for line in chart.lines)
    place = f'<div class="plot" data-chart="{escape(chart.key)}"></div>' if has_points else ""
    return f'<div class="card"><h3>{escape(chart.title)}</h3>{note}{place}</div>'


def x_axis(low: float, high: float, text: Callable[[float], str]) -> str:
    """Return labels for both ends and the middle of an axis."""
    if high == low:
        return f'<div class="xs"><span style="left:0">{escape(text(low))}</span></div>'
    places = ((0, low), (50, (low + high) / 2), (100, high))
    spans = "".join(f'<span style="left:{at}%">{escape(text(value))}</span>' for at, value in places)
    return f'<div class="xs">{spans}</div>'


def bar(parts: Iterable[tuple[str, str, float]]) -> str:
    """Return a bar of parts: (label, CSS variable, share of the whole width)."""
    drawn = "".join(
        f'<i style="width:{100 * share:.3f}%;background:var(--{color})" title="{escape(label)}"></i>'
        for label, color, share in parts
        if share > 0
    )
    return f'<div class="bar">{drawn}</div>'


def key(entries: Iterable[tuple[str, str]]) -> str:
    """Return a colour key: (label, CSS variable)."""
    drawn = "".join(
        f'<li><i style="background:var(--{color})"></i>{escape(label)}</li>' for label, color in entries
    )
    return f'<ul class="key">{drawn}</ul>'
