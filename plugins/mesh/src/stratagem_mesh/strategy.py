"""`ComposedStrategy`: axes from separate plugins on one mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Union

from stratagem_sharding.deferring import DeferringStrategy
from stratagem_sharding.kept_shards import KeptShards
from stratagem_sharding.meshes import mesh_of
from stratagem_sharding.whole_steps import reason_despite_wholes

from stratagem import (
    Capabilities,
    Collectives,
    CombinationError,
    ConfigError,
    Prepared,
    ReduceRequest,
    SetupRequest,
    hookimpl,
)
from stratagem.errors import nearest
from stratagem.sdk.axes import Axis, AxisChoice, composed, ranks_along
from stratagem.sdk.catalogue import load_catalogue
from stratagem_mesh.applying import apply_axes, apply_to_part
from stratagem_mesh.plan import describe, describe_elastic
from stratagem_mesh.prepared import ComposedPrepared

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer
    from typing_extensions import Unpack

    from stratagem.sdk.options import ProcessGroupOptions
    from stratagem.sdk.runs import Run

Axes = Union[str, Sequence[Union[Axis, AxisChoice]]]


class ComposedStrategy(DeferringStrategy):
    """Several parallelisms at once, each along its own axis of one mesh of ranks.

    Args:
        axes: an expression, as "shard=2+tensor=2", or axes in any order. Their sizes multiply to the number of ranks;
            one may be "auto".
        axis_options: name of an axis → keyword values for its constructor, for axes that are given by name.
        sync_module_states: start from rank 0's parameters and buffers; False refuses ranks that differ.
        options: options of `ProcessGroupOptions`.

    Raises:
        ConfigError: the axes can't be composed, or an axis doesn't have an option.
        UnknownNameError: no installed distribution has an axis of that name.
    """

    optimizer_cuts = ("parameters", "rows", "columns")

    def __init__(
        self,
        axes: Axes = (),
        *,
        axis_options: Mapping[str, Mapping[str, Any]] | None = None,
        sync_module_states: bool = True,
        **options: Unpack[ProcessGroupOptions],
    ) -> None:
        super().__init__(**options)
        self.sync_module_states = sync_module_states
        chosen = load_catalogue().find_axes(axes) if isinstance(axes, str) else axes
        self.composition = composed(_made(chosen, axis_options or {}))
        self.axes = self.composition.given

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh of the current run, with one dimension per axis, under the axis's name.

        Raises:
            StratagemError: this process has no current run of this strategy.
        """
        return mesh_of(self.collectives)

    def refine_capabilities(self, declared: Capabilities) -> Capabilities:
        """Leave out features that an axis lacks, and "elastic" unless a data axis has size "auto"."""
        features, precisions = declared.features, declared.precisions
        automatic = self.composition.automatic
        if automatic is None or automatic.reads_same_batches:
            features -= {"elastic"}
        for axis in self.axes:
            features -= axis.lacks
            if "*" not in axis.precisions:
                precisions = tuple(each for each in precisions if each in axis.precisions)
        return replace(declared, features=features, precisions=precisions)

    def advice_for(self, feature: str) -> str | None:
        """For "elastic", advise to leave out the size of a data axis."""
        data = self.composition.data_axes()
        sized = [axis for axis in self.axes if axis.name in data]
        is_lacking = any(feature in axis.lacks for axis in self.axes)
        if feature != "elastic" or not sized or self.composition.automatic is not None or is_lacking:
            return None
        free = sized[0].name
        terms = [axis.name if axis.name == free else f"{axis.name}={axis.size}" for axis in self.axes]
        return f"leave out the size of a data axis, as in {'+'.join(terms)}, which then follows the nodes"

    @property
    def rank_unit(self) -> int:
        """The product of the given sizes."""
        return self.composition.rank_unit

    def check_run(self, run: Run) -> None:
        """Refuse a mesh whose sizes don't multiply to the number of processes, before any is started."""
        sizes = self.composition.sizes(run.world_size)
        divider = self.composition.divider
        if divider is not None and not self.sync_module_states:
            raise CombinationError(
                f"sync_module_states=False compares the ranks' whole modules, and axis {divider.name!r} gives each "
                "rank a part of rank 0's: leave sync_module_states out"
            )
        for axis in self.composition.axes:
            axis.check_run(sizes, run)

    def check_module(self, module: nn.Module, run: Run) -> None:
        """Refuse a module that one of the axes can't divide or split."""
        sizes = self.composition.sizes(run.world_size)
        for axis in self.composition.axes:
            axis.check_module(module, sizes)

    def describe_run(self, run: Run) -> Sequence[str]:
        """Describe the mesh, which ranks read the same batches, what axes send, and how machines come and go."""
        lines = describe(self.composition, self.composition.sizes(run.world_size))
        return [*lines, *describe_elastic(self.composition, run.plan)]

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Open the process group and the mesh. The data ranks are those along all data axes."""
        collectives = self.open_process_group(request)
        sizes = self.composition.sizes(collectives.world_size)
        names, shape = list(sizes), list(sizes.values())
        mesh = self.open_mesh(shape, names, request.device.type)
        dims = [names.index(name) for name in self.composition.data_axes()]
        data = names[dims[0]] if len(dims) == 1 else self.open_group(ranks_along(shape, dims))
        collectives.arrange(mesh, data)
        return collectives

    def refuse_optimizer(self, optimizer: Optimizer, world_size: int) -> str | None:
        """Refuse optimizers that need all parameters at once if each rank has only some of them."""
        reason = super().refuse_optimizer(optimizer, world_size)
        divider = self.composition.divider
        has_all = divider is None or self.composition.sizes(world_size)[divider.name] == 1
        return reason_despite_wholes(self, optimizer, reason, has_all=has_all)

    def can_restore(self, shards: object) -> bool:
        """Whether the shards are those of a module with DTensors, which `setup` can restore."""
        return isinstance(shards, KeptShards)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Return a module that every axis has transformed."""
        construction = self.pop_deferred_init(request.original_module)
        sizes = self.composition.sizes(request.collectives.world_size)
        axes, mesh = self.composition.axes, mesh_of(request.collectives)
        divider, closing = self.composition.divider, self.session.closing
        if divider is not None:
            return apply_to_part(request, divider, axes, mesh, sizes, construction, closing, self.open_group)
        sharded, steps = apply_axes(
            request, axes, mesh, sizes, construction, self.sync_module_states, closing, self.open_group
        )
        several = [axis for axis in axes if sizes[axis.name] > 1]
        return ComposedPrepared(request, sharded, several, steps)


def compose(*axes: Axis, **options: Any) -> ComposedStrategy:
    """Return a strategy that composes axes, as in `compose(ShardAxis(2), TensorAxis(2))`.

    Args:
        axes: in any order.
        options: further keywords of `ComposedStrategy`.
    """
    return ComposedStrategy(axes, **options)


def _made(chosen: Sequence[Axis | AxisChoice], options: Mapping[str, Mapping[str, Any]]) -> list[Axis]:
    """Construct the axes that are given by name, each with its options."""
    by_name = [each.component.name for each in chosen if isinstance(each, AxisChoice)]
    for name in options:
        if name not in by_name:
            raise ConfigError(
                f"axis_options has options of {name!r}, which is no axis that is given by name; "
                f"{nearest(name, by_name, 'set options of an axis object in its constructor')}"
            )
    return [_make(each, options) if isinstance(each, AxisChoice) else each for each in chosen]


def _make(choice: AxisChoice, options: Mapping[str, Mapping[str, Any]]) -> Axis:
    component = choice.component
    cls = component.load()
    own = {**component.options, **options.get(component.name, {})}
    allowed = list(signature(cls).parameters)
    for option in own:
        if option not in allowed or option == "size":
            names = [name for name in allowed if name != "size"]
            raise ConfigError(
                f"axis {component.name!r} has no setting {option!r}; it has {', '.join(names) or 'none'}"
            )
    made: Axis = cls(choice.size, **own)
    return made
