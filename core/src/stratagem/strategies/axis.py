"""`Axis`: one parallelism, which a strategy composes with others on one mesh of ranks.

An axis is configuration, like a strategy. The code that runs during training is in the `AxisSteps` that `apply`
returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stratagem.errors import CombinationError, ConfigError
from stratagem.plugin.axis_choice import AxisSize, check_axis_size

if TYPE_CHECKING:
    from contextlib import ExitStack

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from stratagem.plugin.requests import SetupRequest
    from stratagem.resolve.run import Run
    from stratagem.strategies.prepared import Prepared


class Axis(ABC):
    """One parallelism: a dimension of a mesh of ranks, and the work that ranks along it divide.

    Args:
        size: number of ranks along it; "auto" takes all ranks that the other axes leave.

    Attributes:
        size: the argument; text that is a number becomes an int.

    Raises:
        ConfigError: `size` is neither a positive whole number nor "auto".
    """

    name: ClassVar[str]
    """The name of its component, and of its dimension of the mesh."""
    mesh_order: ClassVar[int]
    """Position of its dimension in the mesh. The axis with the smallest number is the outermost; its ranks are far
    apart. Ranks along the innermost axis are neighbours. docs/guides/compositions.md lists the numbers of our
    axes."""
    setup_order: ClassVar[int]
    """When its `apply` is called, the smallest number first. Axes that split layers come before axes that shard the
    remaining parameters."""
    reads_same_batches: ClassVar[bool]
    """Whether ranks along it read the same batches. Data is divided among the ranks of the axes where this is
    False."""
    averages_gradients: ClassVar[bool] = True
    """Whether gradients are complete over its ranks when an optimizer steps. Losses with weights need that."""
    keeps_copies_equal: ClassVar[bool] = True
    """Whether the copies that ranks along it hold stay equal after each step. If so, they are compared during
    training."""
    unsplit_parameters: ClassVar[Literal["own", "copies", "shards"]] = "own"
    """Which axis reduces the gradients of parameters that this axis doesn't split. "own": this axis does. "copies":
    the axis that shards parameters averages them over this axis, too. "shards": the axis that shards parameters
    shards them over both axes."""
    excludes: ClassVar[Mapping[str, str]] = {}
    """Names of axes that it can't be composed with → the reason, as the end of a sentence."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Names from `FEATURES` that compositions with this axis don't support."""
    precisions: ClassVar[tuple[str, ...]] = ("*",)
    """Names of supported precisions. "*" matches any name, and "float8*" any name with this prefix."""
    gives_parts: ClassVar[bool] = False
    """Whether it gives each rank a different part of the module, and runs each batch through all parts. If so,
    `divide` is called. A composition has at most one such axis."""
    takes_parts: ClassVar[bool] = False
    """Whether it can be composed with an axis that gives parts. Its `apply` must then respect `AxisTarget.roots`."""
    sends: ClassVar[str]
    """What ranks along it send to each other, and when. Ends the line "NAME: ranks … send" of the printed plan."""

    def __init__(self, size: AxisSize = "auto") -> None:
        self.size = check_axis_size(self.name, size)

    def companions(self) -> Sequence[Axis]:
        """Return axes that it needs in the mesh. Each is added unless the user gave an axis of the same name."""
        return ()

    def check_run(self, sizes: Mapping[str, int], run: Run) -> None:
        """Refuse a run that its settings don't support. Called before anything is launched.

        Args:
            sizes: number of ranks of all axes by name, outermost first.
            run: the assembled run.

        Raises:
            UsageError: says what to choose instead.
        """

    def check_module(self, module: nn.Module, sizes: Mapping[str, int]) -> None:
        """Refuse a module that `divide` or `apply` would refuse, before anything is launched.

        Called as `Strategy.check_module`.

        Args:
            module: the user's module. It must not be changed.
            sizes: number of ranks of all axes by name, outermost first.

        Raises:
            UsageError: says what to change in the module or in the settings.
        """

    def divide(self, target: AxisTarget) -> ModulePart:
        """Give this rank its part of the module. Collective.

        Called once in a `setup`, before any `apply`, if the axis `gives_parts`. Afterwards, tensors that this rank
        computes with have their values. The other tensors are on "meta", so that the module keeps all names.

        Args:
            target: as for `apply`.

        Raises:
            ConfigError: the module can't be divided; says what to change.
        """
        raise NotImplementedError(f"axis {self.name!r} gives parts, and doesn't override divide")

    @abstractmethod
    def apply(self, target: AxisTarget) -> AxisSteps:
        """Transform the module in place for this rank. Collective.

        Called once in a `setup`, after the axes with a smaller `setup_order`.

        Args:
            target: the module, and the mesh of ranks.

        Returns:
            The axis's work in each step.

        Raises:
            ConfigError: the module can't be transformed; says what to change.
        """


@dataclass(frozen=True)
class AxisTarget:
    """The module that an axis transforms, and the mesh of ranks."""

    request: SetupRequest
    """As the `setup` hook received it. Its module's tensors may be on "meta" until they are filled."""
    mesh: DeviceMesh
    """All ranks of the run. It has one dimension per axis, with the axis's name."""
    sizes: Mapping[str, int]
    """Number of ranks along each axis by its name, outermost first."""
    axes: Sequence[Axis]
    """All axes, outermost first."""
    fill_unit: Callable[[nn.Module], None]
    """Fill a module's tensors, except those of submodules that were filled before. The values are rank 0's, or those
    with which the module was made. Collective. Modules that no axis fills are filled after the last axis."""
    closing: ExitStack
    """Closed at the end of the run. Add callbacks that undo changes to the user's module or to the process."""
    open_group: Callable[[Iterable[Sequence[int]]], Any]
    """Open a `torch.distributed` group for each list of ranks, and return this rank's. Collective among all ranks."""
    construction: Any = None
    """The recorded construction of tensors on "meta"; None if the strategy recorded none."""
    roots: Sequence[nn.Module] | None = None
    """The outermost modules that this rank calls, if an axis has given it a part of the module; None if it has the
    whole module. Outside of these roots, tensors that aren't on "meta" are whole."""
    split: dict[nn.Module, str] = field(default_factory=dict)
    """Module → name of the axis that split the module's direct parameters, if that axis's ranks read different
    batches. Such an axis adds the entry. The gradients of these parameters need no reduction along it, so the axis
    that shards parameters doesn't shard them over its ranks."""

    def names(self, unsplit_parameters: str) -> list[str]:
        """Return the names of axes with this `unsplit_parameters` and more than one rank, outermost first."""
        return [
            axis.name
            for axis in self.axes
            if axis.unsplit_parameters == unsplit_parameters and self.sizes[axis.name] > 1
        ]


class ModulePart(ABC):
    """The part of a module that an axis has given this rank.

    Attributes:
        roots: the outermost modules that this rank calls. The other axes get them as `AxisTarget.roots`.
    """

    roots: Sequence[nn.Module]

    @abstractmethod
    def prepare(self, steps: Sequence[AxisSteps]) -> Prepared:
        """Return the `Prepared` that runs batches through all parts. Collective.

        Called once, after every other axis's `apply`. The `Prepared` must call the methods of `steps`: `begin` first,
        and `gathered` around each batch.

        Args:
            steps: the other axes' work, in the order in which the axes were applied.
        """


class AxisSteps:
    """An axis's work while a module trains. All ranks call the methods in the same order.

    Within these methods, parameters and gradients of modules that other axes split are DTensors.
    """

    has_gradients_to_complete: bool = False
    """Whether `complete_gradients` must be called. An axis with one rank doesn't need it, for example."""
    asks_whether_calls_are_alike: bool = False
    """Whether `gathered` uses its argument `calls_alike`. Finding it out takes a message per batch."""

    def begin(self, prepared: Prepared) -> None:
        """Prepare for training or evaluation. Called once, before the other methods.

        Args:
            prepared: the module, which all axes have transformed, and its optimizers.
        """

    def computing(self) -> AbstractContextManager[Any]:
        """Return a context for each forward and each backward."""
        return nullcontext()

    def gathered(self, reduces: bool, calls_alike: bool) -> AbstractContextManager[Any]:
        """Return a context for all forwards and backwards of a batch that runs through the parts of several ranks.

        Unless `calls_alike`, ranks along this axis that read different batches may call their modules a different
        number of times, so parameters can't be gathered in each call. The context then gathers them on entry and
        frees them on exit. Both are collective.

        Args:
            reduces: whether gradients are reduced on exit, including unreduced ones of earlier batches.
            calls_alike: whether all ranks call their modules equally often, in the same order. False unless
                `asks_whether_calls_are_alike`.
        """
        return nullcontext()

    def map_output(self, output: Any) -> Any:
        """Return the output that the caller of a forward gets.

        Args:
            output: the module's output. Axes that were applied before this one have already mapped it.
        """
        return output

    def after_backward(self) -> None:
        """Average gradients after a backward that isn't within `no_sync`. Collective.

        It may be called several times for the same gradient. A gradient that is already averaged must not change.
        """

    def complete_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        """Complete gradients over the ranks of this axis, before they are clipped or stepped. Collective.

        Each gradient is passed once. If a later backward adds to it, only the new part is passed, and the caller adds
        the two.

        Args:
            parameters: those of one optimizer.
        """

    def after_step(self, prepared: Prepared, index: int) -> None:
        """Do periodic work after an optimizer step, such as averaging parameters. May be collective.

        Args:
            prepared: the module and its optimizers.
            index: of the optimizer that has stepped.
        """

    def make_equal(self, prepared: Prepared) -> None:
        """Make the copies that ranks hold equal, for an axis that doesn't keep them equal. Collective.

        Called before an evaluation, before a checkpoint and at the end of a run.
        """

    def release(self) -> None:
        """Drop everything that refers to the process group."""


@dataclass(frozen=True)
class Composition:
    """Axes in the order of their mesh, checked against each other."""

    axes: tuple[Axis, ...]
    """Outermost first, with their companions."""
    given: tuple[Axis, ...] = field(compare=False)
    """Those that the user named, in the same order."""

    def sizes(self, processes: int) -> dict[str, int]:
        """Return the number of ranks along each axis by name, outermost first.

        Args:
            processes: number of processes of the run.

        Raises:
            ConfigError: the sizes don't multiply to `processes`.
        """
        fixed = {axis.name: axis.size for axis in self.axes if isinstance(axis.size, int)}
        taken, automatic = self.rank_unit, self.automatic
        if processes % taken == 0 and automatic is not None:
            fixed[automatic.name] = processes // taken
        elif taken != processes:
            shape = " × ".join(str(axis.size) for axis in self.given)
            raise ConfigError(
                f"axes {self.described()} make a mesh of {shape}, "
                f"and the run has {processes} processes: give sizes that multiply to {processes}, such as "
                f"{self._fitting(processes)}"
            )
        return {axis.name: fixed[axis.name] for axis in self.axes}

    @property
    def automatic(self) -> Axis | None:
        """The axis with the size "auto", if there is one."""
        return next((axis for axis in self.axes if axis.size == "auto"), None)

    @property
    def rank_unit(self) -> int:
        """The product of all sizes that are numbers. The number of ranks must be a multiple of it."""
        return prod(axis.size for axis in self.axes if isinstance(axis.size, int))

    @property
    def divider(self) -> Axis | None:
        """The axis that gives ranks parts of the module, if there is one."""
        return next((axis for axis in self.axes if axis.gives_parts), None)

    def data_axes(self) -> list[str]:
        """Return the names of the axes whose ranks read different batches, outermost first."""
        return [axis.name for axis in self.axes if not axis.reads_same_batches]

    def described(self) -> str:
        """Return the composition as an expression, such as "shard=2+tensor=2"."""
        return "+".join(f"{axis.name}={axis.size}" for axis in self.given)

    def _fitting(self, processes: int) -> str:
        """Return an expression for this number of processes. It keeps the given sizes as far as they divide it."""
        left, terms = processes, {}
        for axis in reversed(self.given[1:]):
            size = axis.size if isinstance(axis.size, int) and left % axis.size == 0 else 1
            terms[axis.name], left = size, left // size
        return "+".join(f"{axis.name}={terms.get(axis.name, 'auto')}" for axis in self.given)


def composed(axes: Sequence[Axis]) -> Composition:
    """Order axes and check that they can be composed.

    Args:
        axes: in any order.

    Raises:
        ConfigError: there are none, two have the same name, or several have the size "auto".
        CombinationError: one excludes another; names both.
    """
    if not axes:
        raise ConfigError("a composition has no axes: give some, as shard=2+tensor=2")
    named: dict[str, Axis] = {}
    for axis in axes:
        if not isinstance(axis, Axis):
            raise ConfigError(
                f"{axis!r} is not an axis: give objects of classes derived from stratagem.sdk.axes.Axis"
            )
        if axis.name in named:
            raise ConfigError(
                f"axis {axis.name!r} is given twice: give it once, with the product of both sizes"
            )
        named[axis.name] = axis
    for axis in axes:
        for companion in axis.companions():
            named.setdefault(companion.name, companion)
    automatic = [axis.name for axis in named.values() if axis.size == "auto"]
    if len(automatic) > 1:
        raise ConfigError(
            f"axes {automatic[0]!r} and {automatic[1]!r} both have the size 'auto', the rest of the ranks: give one "
            "of them a number"
        )
    for axis in named.values():
        for other, why in axis.excludes.items():
            if other in named:
                raise CombinationError(f"axis {axis.name!r} can't be composed with axis {other!r}: {why}")
    _refuse_parts(list(named.values()))
    ordered = sorted(named.values(), key=lambda axis: (axis.mesh_order, axis.name))
    return Composition(tuple(ordered), tuple(axis for axis in ordered if axis in axes))


def _refuse_parts(axes: Sequence[Axis]) -> None:
    """Refuse axes that need the whole module if another axis gives each rank a part of it."""
    divider = next((axis for axis in axes if axis.gives_parts), None)
    for axis in axes:
        if divider is not None and axis is not divider and not axis.takes_parts:
            raise CombinationError(
                f"axis {axis.name!r} can't be composed with axis {divider.name!r}: each rank of "
                f"{divider.name!r} has a part of the module, and {axis.name!r} needs the whole: leave one of them out"
            )
