"""The axes that a run's strategy composes, for the printed plan and for comparing ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratagem.resolve.resolved import Resolved, resolved_from

if TYPE_CHECKING:
    from stratagem.installed.catalogue import Catalogue
    from stratagem.strategies.axis import Axis


def resolved_axes(catalogue: Catalogue, axes: Sequence[Axis]) -> list[Resolved]:
    """Return each axis with its size, and the distribution that declares it.

    Args:
        catalogue: what is installed.
        axes: the strategy's axes, outermost first.
    """
    declared = {component.target: component for component in catalogue.of_kind("axis")}
    found = []
    for axis in axes:
        name = f"{axis.name}={axis.size}"
        component = declared.get(f"{type(axis).__module__}:{type(axis).__qualname__}")
        found.append(
            Resolved("axis", name, axis) if component is None else resolved_from(component, axis, name)
        )
    return found
