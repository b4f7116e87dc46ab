"""The data of charts, which `assets/charts.js` draws with uPlot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

MOST_POINTS = 1000
"""Maximum number of points of a line: more than a screen shows, so that users can zoom."""


class Line(NamedTuple):
    """A line of a chart."""

    label: str
    color: str
    """Name of a CSS variable."""
    points: Sequence[tuple[float, float]]


class Chart(NamedTuple):
    """A chart of lines over one axis."""

    key: str
    """A different key for each chart of a page. When the page is refreshed, the key finds the zoomed chart again."""
    title: str
    lines: Sequence[Line]
    unit: str = ""
    """Unit of the values, such as "GiB"."""
    over: str = "step"
    """The horizontal axis: "step" or "seconds"."""
    from_zero: bool = False
    """Whether the vertical axis begins with 0."""
    stacked: bool = False
    """Whether each line is stacked on the one before. All lines must have the same horizontal points."""
    note: str = ""

    def data(self) -> dict[str, Any]:
        """Return the data for the page's script as JSON values; None is a gap."""
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
    """Return the points to draw. Of many, keep the lowest and the highest of each span, so that peaks remain."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / MOST_POINTS)
    kept = []
    for start in range(0, len(points), size):
        span = points[start : start + size]
        kept += sorted({min(span, key=lambda point: point[1]), max(span, key=lambda point: point[1])})
    return kept
