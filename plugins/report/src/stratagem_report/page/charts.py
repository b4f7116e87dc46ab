"""Charts as data: what `assets/charts.js` draws by uPlot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

MOST_POINTS = 1000
"""Points per line: more than a screen shows, for those who zoom."""


class Line(NamedTuple):
    """A line of a chart."""

    label: str
    color: str
    """Name of a CSS variable."""
    points: Sequence[tuple[float, float]]


class Chart(NamedTuple):
    """A chart of lines over one axis."""

    key: str
    """Different for each chart of a page; a zoomed one is found again by it when the page is refreshed."""
    title: str
    lines: Sequence[Line]
    unit: str = ""
    """Of the values, as "GiB"."""
    over: str = "step"
    """What the axis has: "step", or "seconds"."""
    from_zero: bool = False
    """Whether the upright axis begins with 0."""
    stacked: bool = False
    """Whether each line stands on the one before; they have the same points on the axis."""
    note: str = ""

    def data(self) -> dict[str, Any]:
        """Return what the page's script reads, in JSON's types; gaps are None."""
        lines = [dict(thinned(line.points)) for line in self.lines]
        xs = sorted({x for points in lines for x in points})
        return {
            "unit": self.unit,
            "over": self.over,
            "fromZero": self.from_zero,
            "stacked": self.stacked,
            "lines": [{"label": line.label, "color": line.color} for line in self.lines],
            "data": [xs, *([points.get(x) for x in xs] for points in lines)],
        }


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
