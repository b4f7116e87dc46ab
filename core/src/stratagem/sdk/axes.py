"""For axes: parallelisms that a strategy composes with others on one mesh of ranks."""

from stratagem.plugin.axis_choice import AxisChoice, AxisSize
from stratagem.strategies.axis import Axis, AxisSteps, AxisTarget, Composition, ModulePart, composed
from stratagem.strategies.process_group import ranks_along

__all__ = [
    "Axis",
    "AxisChoice",
    "AxisSize",
    "AxisSteps",
    "AxisTarget",
    "Composition",
    "ModulePart",
    "composed",
    "ranks_along",
]
