"""Draws the metrics of a CSV file over the steps, in one panel per kind of metric."""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Series = tuple[NDArray[np.float64], NDArray[np.float64]]

_STAGE = re.compile(r"^(train|training|val|valid|validation|test)[_/.]")
_COLOURS = {"train": "#3b6fb6", "val": "#d9772b", "test": "#3f9b62"}
_FURTHER = ("#7a5aa6", "#b8455d", "#2f8f9d", "#8c7a3a", "#555555")
_PANELS = 4
"""At most so many panels; the last one has all further metrics."""
_POINTS = 5_000
"""Points per line, at most: more can't be seen, and make the picture slow."""
_NOISY = 60
"""A line with at least so many points is drawn smoothed, over a pale line of all points."""


def draw_curves(source: str, picture: str) -> None:
    """Draw the finite values of every metric in `source`.

    Args:
        source: a CSV file with the columns step and epoch, and one for each metric.
        picture: the file to write; its ending decides the format. Without metrics no file is written.
    """
    series = _read(source)
    panels = _arrange(series)
    if not panels:
        return
    columns = 2 if len(panels) == 4 else len(panels)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.4 * columns, 3.6 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    every_step = np.concatenate([steps for steps, _ in series.values()])
    margin = 0.02 * max(every_step.max() - every_step.min(), 1.0)
    for number, (title, names) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        _draw_panel(axes, title, {name: series[name] for name in names})
        axes.set_xlim(every_step.min() - margin, every_step.max() + margin)
    figure.savefig(picture)


def _read(source: str) -> dict[str, Series]:
    values: dict[str, list[tuple[int, float]]] = {}
    with open(source, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            for name, cell in line.items():
                if name not in ("step", "epoch") and cell:
                    values.setdefault(name, []).append((int(line["step"]), float(cell)))
    series: dict[str, Series] = {}
    for name, points in values.items():
        table = np.asarray(points, dtype=np.float64)
        table = table[np.isfinite(table[:, 1])]
        if len(table):
            series[name] = (table[:, 0], table[:, 1])
    return series


def _arrange(series: dict[str, Series]) -> dict[str, list[str]]:
    """Group metrics into panels: losses first, then the metrics whose names differ only in the stage."""
    panels: dict[str, list[str]] = {}
    for name in sorted(series, key=_rank):
        kind = "learning rate" if name.startswith("lr-") else _STAGE.sub("", name).partition("/")[0]
        panels.setdefault("loss" if "loss" in name else kind, []).append(name)
    if len(panels) > _PANELS:
        titles = list(panels)
        rest = [name for title in titles[_PANELS - 1 :] for name in panels.pop(title)]
        panels["other metrics"] = rest
    return panels


def _rank(name: str) -> tuple[int, str]:
    return (0 if "loss" in name else 2 if name.startswith("lr-") else 1), name


def _draw_panel(axes: Axes, title: str, series: dict[str, Series]) -> None:
    further = iter(_FURTHER * len(series))
    taken: set[str] = set()
    lines: list[NDArray[np.float64]] = []
    for name, (steps, values) in series.items():
        stage = _stage(name)
        colour = _COLOURS[stage] if stage in _COLOURS and stage not in taken else next(further)
        taken.add(stage)
        how: dict[str, Any] = {"color": colour, "linewidth": 1.8, "label": _label(name, values)}
        if len(values) >= _NOISY:
            axes.plot(*_thin(steps, values), color=colour, linewidth=0.7, alpha=0.3)
            values = _smooth(values)
        elif len(values) <= 40:
            how.update(marker="o", markersize=4)
        axes.plot(*_thin(steps, values), **how)
        lines.append(values)
    drawn = np.concatenate(lines)
    if title == "loss" and drawn.min() > 0 and drawn.max() > 30 * drawn.min():
        axes.set_yscale("log")
    axes.set_title(title, fontsize=11, loc="left", fontweight="bold")
    axes.set_xlabel("optimizer step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)


def _stage(name: str) -> str:
    match = _STAGE.match(name)
    if match is None:
        return ""
    return {"training": "train", "valid": "val", "validation": "val"}.get(match[1], match[1])


def _label(name: str, values: NDArray[np.float64]) -> str:
    if len(values) == 1:
        return f"{name}  {values[-1]:.4g}"
    if "loss" in name:
        return f"{name}  best {values.min():.4g}, last {values[-1]:.4g}"
    return f"{name}  last {values[-1]:.4g}"


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average over a centred window of a thirtieth of the line. The window is shorter near both ends."""
    half = max(1, len(values) // 60)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    averages: NDArray[np.float64] = (sums[high] - sums[low]) / (high - low)
    return averages


def _thin(steps: NDArray[np.float64], values: NDArray[np.float64]) -> Series:
    stride = -(-len(values) // _POINTS)
    return steps[::stride], values[::stride]
