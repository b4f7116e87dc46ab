"""Applies every axis of a composition to a user's module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stratagem_fsdp import Sharded, move_the_rest, sharded_units
from stratagem_sharding.deferred_init import Construction, Materializer
from stratagem_sharding.filling import Filler
from stratagem_sharding.kept_shards import KeptShards, Refill, remove_sharding
from stratagem_sharding.module_snapshot import ModuleSnapshot

from stratagem.sdk.axes import Axis, AxisSteps, AxisTarget

if TYPE_CHECKING:
    from contextlib import ExitStack

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from stratagem import Prepared, SetupRequest


def apply_axes(
    request: SetupRequest,
    axes: Sequence[Axis],
    mesh: DeviceMesh,
    sizes: Mapping[str, int],
    construction: Construction | None,
    sync_module_states: bool,
    closing: ExitStack,
    open_group: Callable[[Iterable[Sequence[int]]], Any],
) -> tuple[Sharded, list[AxisSteps]]:
    """Transform `request.module` in place, axis by axis. Collective.

    Args:
        request: as the `setup` hook received it.
        axes: in the order of the mesh.
        mesh: has one dimension per axis.
        sizes: of the axes by name.
        construction: the recorded construction of a module on "meta"; else None.
        sync_module_states: whether to start from rank 0's values.
        closing: closed at the end of the run.
        open_group: as `AxisTarget.open_group`.

    Returns:
        The sharded units, and each axis's work per step, in the order in which the axes were applied.
    """
    root, original_module = request.module, request.original_module
    snapshot = ModuleSnapshot(root)
    refill: Refill | None = None
    if isinstance(request.left_shards, KeptShards):
        refill = Refill(original_module, request.left_shards, request.collectives.world_size)
    source = refill or Materializer(root, construction, None, sync_module_states, request.collectives)
    filling = _Filling(Filler(root, source, request.precision))
    target = AxisTarget(request, mesh, sizes, axes, filling.fill, closing, open_group)
    steps = [axis.apply(target) for axis in sorted(axes, key=lambda axis: (axis.setup_order, axis.name))]
    filling.fill(root)
    if refill is not None:
        refill.finish()
    move_the_rest(request)
    snapshot.note()
    units, outermost = sharded_units(root)
    return Sharded(units, outermost, (), snapshot), steps


def apply_to_part(
    request: SetupRequest,
    divider: Axis,
    axes: Sequence[Axis],
    mesh: DeviceMesh,
    sizes: Mapping[str, int],
    construction: Construction | None,
    closing: ExitStack,
    open_group: Callable[[Iterable[Sequence[int]]], Any],
) -> Prepared:
    """Divide `request.module`, and transform this rank's part in place, axis by axis. Collective.

    Args:
        request: as the `setup` hook received it.
        divider: the axis that gives each rank its part and runs batches through all parts.
        axes: in the order of the mesh, including the divider.
        mesh: has one dimension per axis.
        sizes: of the axes by name.
        construction: the recorded construction of a module on "meta"; else None.
        closing: closed at the end of the run.
        open_group: as `AxisTarget.open_group`.
    """
    root = request.module
    snapshot = ModuleSnapshot(root)
    target = AxisTarget(request, mesh, sizes, axes, _leave, closing, open_group, construction)
    part = divider.divide(target)
    filling = _Filling(Filler(root, _Filled(), request.precision))
    target = replace(target, fill_unit=filling.fill, roots=tuple(part.roots))
    others = sorted(axes, key=lambda axis: (axis.setup_order, axis.name))
    steps = [axis.apply(target) for axis in others if axis is not divider]
    filling.fill(root)
    snapshot.note()
    closing.callback(partial(remove_sharding, snapshot))
    return part.prepare(steps)


def _leave(unit: nn.Module) -> None:
    """Do nothing: the divider fills modules itself."""


class _Filled:
    """In place of a `Materializer`, for modules that are already filled."""

    def fill(self, unit: nn.Module, inner: set[nn.Module]) -> None:
        """Do nothing."""


class _Filling:
    """Fills each module with its values once, inner ones first."""

    def __init__(self, filler: Filler) -> None:
        self._filler = filler
        self._done: set[nn.Module] = set()

    def fill(self, unit: nn.Module) -> None:
        if not self._done:
            # By now, all axes that split layers have done so.
            self._filler.tie_again()
        if unit not in self._done:
            self._filler.fill(unit, self._done)
            self._done.add(unit)
