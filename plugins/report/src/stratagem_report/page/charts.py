"""Charts as HTML: lines in SVG, everything with text beside them, so that text keeps its size at any width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from stratagem_report.page.text import escape, number

MOST_POINTS = 400
"""Points per line: a screen can't show more."""


class Line(NamedTuple):
    """A line of a chart."""

    label: str
    color: str
    """Name of a CSS variable."""
    points: Sequence[tuple[float, float]]


def line_chart(
    lines: Sequence[Line],
    x_text: Callable[[float], str] = number,
    y_text: Callable[[float], str] = number,
    *,
    from_zero: bool = False,
) -> str:
    """Return a chart of lines over one axis.

    Args:
        lines: with a point at least, all together.
        x_text: how the axis says a number.
        y_text: the same, upright.
        from_zero: whether the upright axis begins with 0.
    """
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_low, x_high = min(xs), max(xs)
    ticks = nice_ticks(min([*ys, 0.0]) if from_zero else min(ys), max(ys))
    low, high = ticks[0], ticks[-1]

    def place(x: float, y: float) -> str:
        right = 500.0 if x_high == x_low else 1000 * (x - x_low) / (x_high - x_low)
        return f"{right:.1f} {100 * (high - y) / (high - low):.2f}"

    drawn = []
    for tick in ticks:
        at = 100 * (high - tick) / (high - low)
        drawn.append(f'<path class="grid" d="M0 {at:.2f}H1000"/>')
    for line in lines:
        points = thinned(line.points)
        if len(points) == 1:
            points = [points[0], (points[0][0] + (x_high - x_low or 1.0) * 1e-3, points[0][1])]
        path = "L".join(place(x, y) for x, y in points)
        title = f"<title>{escape(line.label)}</title>"
        drawn.append(f'<path class="line" style="stroke:var(--{line.color})" d="M{path}">{title}</path>')
    upright = "".join(
        f'<span style="top:{100 * (high - tick) / (high - low):.2f}%">{escape(y_text(tick))}</span>'
        for tick in ticks
    )
    # The widest label gives the column its width; the others are placed over it.
    widest = max((y_text(tick) for tick in ticks), key=len)
    return (
        f'<div class="chart"><div class="ys" style="width:{len(widest) * 0.56 + 0.4:.1f}em">{upright}</div>'
        f'<div class="plot"><svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(", ".join(line.label for line in lines))}">{"".join(drawn)}</svg></div>'
        f"{x_axis(x_low, x_high, x_text)}</div>"
    )


def x_axis(low: float, high: float, text: Callable[[float], str]) -> str:
    """Return the labels of both ends, and of the middle."""
    if high == low:
        return f'<div class="xs"><span style="left:0">{escape(text(low))}</span></div>'
    places = ((0, low), (50, (low + high) / 2), (100, high))
    spans = "".join(f'<span style="left:{at}%">{escape(text(value))}</span>' for at, value in places)
    return f'<div class="xs">{spans}</div>'


def stacked_chart(
    shares: Sequence[Sequence[tuple[str, float]]], x_high: float, x_text: Callable[[float], str]
) -> str:
    """Return columns that are divided in parts.

    Args:
        shares: of each column, from the bottom: (CSS variable, share of the whole height).
        x_high: where the last column ends, the first one beginning with 0.
        x_text: how the axis says a number.
    """
    width = 1000 / len(shares)
    drawn = []
    for index, column in enumerate(shares):
        top = 100.0
        for color, share in column:
            if share > 0.001:
                top -= 100 * share
                drawn.append(
                    f'<rect x="{index * width:.2f}" y="{max(top, 0):.2f}" width="{width + 0.4:.2f}" '
                    f'height="{100 * share + 0.1:.2f}" style="fill:var(--{color})"/>'
                )
    upright = "".join(f'<span style="top:{100 - at}%">{at} %</span>' for at in (0, 50, 100))
    return (
        f'<div class="chart"><div class="ys">{upright}</div><div class="plot">'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" shape-rendering="crispEdges" '
        'role="img" aria-label="shares of time">'
        f"{''.join(drawn)}</svg></div>{x_axis(0, x_high, x_text)}</div>"
    )


def bar(parts: Iterable[tuple[str, str, float]]) -> str:
    """Return a bar divided in parts: (label, CSS variable, share of the whole width)."""
    drawn = "".join(
        f'<i style="width:{100 * share:.3f}%;background:var(--{color})" title="{escape(label)}"></i>'
        for label, color, share in parts
        if share > 0
    )
    return f'<div class="bar">{drawn}</div>'


def key(entries: Iterable[tuple[str, str]]) -> str:
    """Return what colours mean: (label, CSS variable)."""
    drawn = "".join(
        f'<li><i style="background:var(--{color})"></i>{escape(label)}</li>' for label, color in entries
    )
    return f'<ul class="key">{drawn}</ul>'


def nice_ticks(low: float, high: float) -> list[float]:
    """Return round numbers, three to six, that enclose a range."""
    if high == low:
        low, high = (low - abs(low) * 0.1, high + abs(high) * 0.1) if low else (0.0, 1.0)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return as many points as a line needs: of more, the lowest and highest of each span, so that peaks stay."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / MOST_POINTS)
    kept = []
    for start in range(0, len(points), size):
        span = points[start : start + size]
        kept += sorted({min(span, key=lambda point: point[1]), max(span, key=lambda point: point[1])})
    return kept
