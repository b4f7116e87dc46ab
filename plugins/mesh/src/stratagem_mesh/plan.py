"""Lines of the printed plan that describe a composition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stratagem.sdk.axes import Composition, ranks_along

if TYPE_CHECKING:
    from stratagem import LaunchPlan

_MAX_GROUPS = 4


def describe(composition: Composition, sizes: Mapping[str, int]) -> list[str]:
    """Return lines with the mesh, the ranks that read the same batches, and what each axis sends.

    Args:
        composition: the axes.
        sizes: number of ranks of each axis by name, outermost first.
    """
    names, shape = list(sizes), list(sizes.values())
    shown = [axis for axis in composition.axes if axis in composition.given or sizes[axis.name] > 1]
    lines = [f"mesh: {' × '.join(f'{axis.name} {sizes[axis.name]}' for axis in shown)}, outermost first"]
    same = [names.index(axis.name) for axis in composition.axes if axis.reads_same_batches]
    parts = 1
    for name in composition.data_axes():
        parts *= sizes[name]
    groups = ranks_along(shape, same)
    if len(groups[0]) == 1:
        lines.append(f"data: {parts} parts, one for each rank")
    else:
        lines.append(
            f"data: {parts} part{'s' * (parts > 1)}; ranks that read the same batches: {_listed(groups)}"
        )
    for dim, axis in enumerate(composition.axes):
        if sizes[axis.name] > 1:
            groups = ranks_along(shape, [dim])
            lines.append(f"{axis.name}: ranks {_listed(groups)} send {axis.sends}")
    return lines


def describe_elastic(composition: Composition, plan: LaunchPlan) -> list[str]:
    """Return a line about the axis that follows the number of machines; no line if that number is fixed."""
    axis = composition.automatic
    if axis is None or not plan.is_elastic or plan.min_nodes is None:
        return []
    least, most = (
        composition.sizes(plan.processes_per_node * nodes)[axis.name]
        for nodes in (plan.min_nodes, plan.num_nodes)
    )
    unit = plan.node_unit
    units = f", in units of {unit}: machines that make no whole unit are spare and wait" if unit > 1 else ""
    return [f"machines: {axis.name} has {least} to {most} ranks as they come and go{units}"]


def _listed(groups: Sequence[Sequence[int]]) -> str:
    texts = [f"{{{', '.join(map(str, group))}}}" for group in groups[:_MAX_GROUPS]]
    return " ".join(texts) + f" and {len(groups) - _MAX_GROUPS} more groups" * (len(groups) > _MAX_GROUPS)
