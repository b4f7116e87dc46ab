"""From a user's module to one that every axis of a composition has transformed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stratagem_fsdp import Sharded, move_the_rest, sharded_units
from stratagem_sharding.deferred_init import Construction, Materializer
from stratagem_sharding.filling import Filler
from stratagem_sharding.kept_shards import KeptShards, Refill, take_off
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
        mesh: with a dimension for each.
        sizes: of the axes by name.
        construction: how the module was constructed, if on "meta".
        sync_module_states: start from rank 0's values.
        closing: unwound at the end of the run.
        open_group: as `AxisTarget.open_group`.

    Returns:
        Which of its modules are sharded, and what each axis does in each step, in the order in which they were
        applied.
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
    """Give this rank its part of `request.module`, and transform that in place, axis by axis. Collective.

    Args:
        request: as the `setup` hook received it.
        divider: gives each rank its part, and says how batches run through all of them.
        axes: in the order of the mesh, with the divider.
        mesh: with a dimension for each.
        sizes: of the axes by name.
        construction: how the module was constructed, if on "meta".
        closing: unwound at the end of the run.
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
    closing.callback(partial(take_off, snapshot))
    return part.prepare(steps)


def _leave(unit: nn.Module) -> None:
    """Leave a module as it is: the divider itself gives it its values."""


class _Filled:
    """Stands where a `Materializer` gives modules their values: they have them."""

    def fill(self, unit: nn.Module, inner: set[nn.Module]) -> None:
        """Leave a module as it is."""


class _Filling:
    """Gives each module its values once, inner ones first."""

    def __init__(self, filler: Filler) -> None:
        self._filler = filler
        self._done: set[nn.Module] = set()

    def fill(self, unit: nn.Module) -> None:
        if not self._done:
            # All axes that split layers have done so.
            self._filler.tie_again()
        if unit not in self._done:
            self._filler.fill(unit, self._done)
            self._done.add(unit)
