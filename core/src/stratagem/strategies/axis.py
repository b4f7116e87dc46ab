"""`Axis`: one parallelism, which a strategy composes with others on one mesh of ranks.

An axis is configuration, as a strategy is: what runs lives in the `AxisSteps` that its `apply` answers with.
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
    """One dimension of a mesh of ranks, and what the ranks along it share out.

    Args:
        size: number of ranks along it; "auto" is what the other axes leave.

    Attributes:
        size: as given.

    Raises:
        ConfigError: another size.
    """

    name: ClassVar[str]
    """The name of its component, and of its dimension of the mesh."""
    mesh_order: ClassVar[int]
    """Its place in the mesh, from the outermost dimension, whose ranks are far apart, to the innermost, whose ranks
    are neighbours. docs/guides/compositions.md lists those of ours."""
    setup_order: ClassVar[int]
    """When its `apply` is called, the smallest first. What splits layers comes before what shards the rest."""
    reads_same_batches: ClassVar[bool]
    """Whether ranks along it read the same batches. The batches are shared among the ranks of all other axes."""
    averages_gradients: ClassVar[bool] = True
    """Whether optimizers step by gradients that are complete over its ranks. Losses with weights need that."""
    keeps_copies_equal: ClassVar[bool] = True
    """Whether the copies that ranks along it hold stay equal after each step. They are then compared during
    training."""
    unsplit_parameters: ClassVar[Literal["own", "copies", "shards"]] = "own"
    """What becomes of parameters that it doesn't split: "own" if it completes their gradients itself; "copies" if the
    axis that shards parameters averages them along this one, too; "shards" if that one shards them along both."""
    excludes: ClassVar[Mapping[str, str]] = {}
    """Name of an axis that it can't be composed with → why, as the end of a sentence."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Features that a composition with it doesn't have, by names from `FEATURES`."""
    precisions: ClassVar[tuple[str, ...]] = ("*",)
    """Names of the precisions it works with; "*" is any, and "float8*" any name with this prefix."""
    gives_parts: ClassVar[bool] = False
    """Whether ranks along it compute different parts of the module, and it runs each batch through all of them:
    `divide` is called then. A composition has at most one such axis."""
    takes_parts: ClassVar[bool] = False
    """Whether it can be composed with an axis that gives parts: its `apply` looks at `AxisTarget.roots`."""
    sends: ClassVar[str]
    """What ranks along it send to each other, and when: a line of the printed plan."""

    def __init__(self, size: AxisSize = "auto") -> None:
        self.size = check_axis_size(self.name, size)

    def companions(self) -> Sequence[Axis]:
        """Return axes that it needs in the mesh, with one rank where the user names none of their name."""
        return ()

    def check_run(self, sizes: Mapping[str, int], run: Run) -> None:
        """Refuse what its settings can't do in this run; asked before anything is launched.

        Args:
            sizes: of all axes by name, outermost first.
            run: assembled.

        Raises:
            UsageError: says what to choose instead.
        """

    def divide(self, target: AxisTarget) -> ModulePart:
        """Give this rank its part of the module. Collective.

        Called once in a `setup`, before any `apply`, of an axis that `gives_parts`. What this rank computes has its
        values afterwards; the rest of the module is on "meta", so that names stay.

        Args:
            target: as for `apply`.

        Raises:
            ConfigError: it can't do so with this module; says what to change.
        """
        raise NotImplementedError(f"axis {self.name!r} gives parts, and doesn't override divide")

    @abstractmethod
    def apply(self, target: AxisTarget) -> AxisSteps:
        """Transform the module in place for this rank. Collective.

        Called once in a `setup`, after the axes with a smaller `setup_order`.

        Args:
            target: the module, and where its ranks stand.

        Returns:
            What it does in each step.

        Raises:
            ConfigError: it can't do so with this module; says what to change.
        """


@dataclass(frozen=True)
class AxisTarget:
    """What an axis transforms."""

    request: SetupRequest
    """As the `setup` hook received it. Its module's tensors may be on "meta" until they are filled."""
    mesh: DeviceMesh
    """All ranks, in a dimension for each axis, which has its name."""
    sizes: Mapping[str, int]
    """Number of ranks along each axis by its name, outermost first."""
    axes: Sequence[Axis]
    """All axes, outermost first."""
    fill_unit: Callable[[nn.Module], None]
    """Give a module its values, outside of modules in it that were filled: rank 0's, or those that it was made with.
    Collective. What no axis fills is filled after the last one."""
    closing: ExitStack
    """Unwound at the end of the run: takes what undoes a change to the user's module, or to the process."""
    open_group: Callable[[Iterable[Sequence[int]]], Any]
    """Open a `torch.distributed` group for each list of ranks, and return this rank's. Collective among all ranks."""
    construction: Any = None
    """How tensors on "meta" were made, as the strategy's base recorded it; None where it didn't."""
    roots: Sequence[nn.Module] | None = None
    """The modules that this rank calls, none of them in another one, where an axis has given it a part of the module.
    Outside of them, tensors that aren't on "meta" are whole. None: this rank has the whole module."""
    split: dict[nn.Module, str] = field(default_factory=dict)
    """Module → name of the axis along which its own parameters were split, and whose ranks read different batches.
    Such an axis adds it, and gathers no gradients along itself; `shard` shards the module separately."""

    def names(self, unsplit_parameters: str) -> list[str]:
        """Return the names of the axes of several ranks with this `unsplit_parameters`, outermost first."""
        return [
            axis.name
            for axis in self.axes
            if axis.unsplit_parameters == unsplit_parameters and self.sizes[axis.name] > 1
        ]


class ModulePart(ABC):
    """What an axis has given a rank of a module.

    Attributes:
        roots: as `AxisTarget.roots` of the other axes.
    """

    roots: Sequence[nn.Module]

    @abstractmethod
    def prepare(self, steps: Sequence[AxisSteps]) -> Prepared:
        """Return what runs batches through all parts. Called once, after every other axis's `apply`. Collective.

        It calls the methods of `steps`, `begin` first, and `gathered` around each batch.

        Args:
            steps: what the other axes do, in the order in which they were applied.
        """


class AxisSteps:
    """What an axis does while a module trains. Every method is called by all ranks alike.

    Parameters and gradients of modules that other axes split are DTensors within them.
    """

    has_gradients_to_complete: bool = False
    """Whether `complete_gradients` is called. An axis with one rank doesn't need it, for example."""

    def begin(self, prepared: Prepared) -> None:
        """Prepare for a module that all axes have transformed, and its optimizers. Called once, before anything else.

        Args:
            prepared: what is going to be trained or evaluated.
        """

    def computing(self) -> AbstractContextManager[Any]:
        """Around each forward and backward."""
        return nullcontext()

    def gathered(self, reduces: bool) -> AbstractContextManager[Any]:
        """Around all forwards and backwards of a batch that runs through the parts of several ranks.

        Ranks along this axis may call their modules unequally often within it, where they read different batches.
        What they need of each other's parameters is gathered before, and freed after. Collective at both ends.

        Args:
            reduces: gradients are reduced at the end, with those of earlier batches that weren't.
        """
        return nullcontext()

    def map_output(self, output: Any) -> Any:
        """Return what the caller of a forward gets.

        Args:
            output: of the module, after the axes that were applied before this one.
        """
        return output

    def after_backward(self) -> None:
        """Average gradients after a backward that isn't within `no_sync`. Collective.

        It may be called several times for one gradient: one that is averaged already must not change.
        """

    def complete_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        """Complete gradients over the ranks of this axis, before they are clipped or stepped. Collective.

        Each gradient is passed once. What a later backward adds is passed separately, and the caller adds the two.

        Args:
            parameters: of one optimizer.
        """

    def after_step(self, prepared: Prepared, index: int) -> None:
        """Do what is due after a step. Collective where it is.

        Args:
            prepared: what is trained.
            index: of the optimizer that has stepped.
        """

    def make_equal(self, prepared: Prepared) -> None:
        """Make the copies that ranks hold equal, for an axis that doesn't keep them equal. Collective.

        Called before an evaluation, before a checkpoint and at the end of a run.
        """

    def release(self) -> None:
        """Let go of what holds the process group."""


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
            processes: of the run.

        Raises:
            ConfigError: they don't multiply to `processes`.
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
        """The axis whose size is what the others leave, if there is one."""
        return next((axis for axis in self.axes if axis.size == "auto"), None)

    @property
    def rank_unit(self) -> int:
        """The product of the sizes that are given: the number of ranks is a multiple of it."""
        return prod(axis.size for axis in self.axes if isinstance(axis.size, int))

    @property
    def divider(self) -> Axis | None:
        """The axis that gives ranks parts of the module, if there is one."""
        return next((axis for axis in self.axes if axis.gives_parts), None)

    def data_axes(self) -> list[str]:
        """Return the names of the axes whose ranks read different batches, outermost first."""
        return [axis.name for axis in self.axes if not axis.reads_same_batches]

    def described(self) -> str:
        """Return the expression that stands for it."""
        return "+".join(f"{axis.name}={axis.size}" for axis in self.given)

    def _fitting(self, processes: int) -> str:
        """Return an expression that fits: the sizes that were given, as far as they divide what is left."""
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
        ConfigError: there are none, two have one name, or several have the size "auto".
        CombinationError: one excludes another; names both.
    """
    if not axes:
        raise ConfigError("a composition has no axes: give some, as shard=2+tensor=2")
    named: dict[str, Axis] = {}
    for axis in axes:
        if not isinstance(axis, Axis):
            raise ConfigError(
                f"{axis!r} is no axis: give objects of classes derived from stratagem.sdk.axes.Axis"
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
    """Refuse axes that need the whole module beside one that gives each rank a part of it."""
    divider = next((axis for axis in axes if axis.gives_parts), None)
    for axis in axes:
        if divider is not None and axis is not divider and not axis.takes_parts:
            raise CombinationError(
                f"axis {axis.name!r} can't be composed with axis {divider.name!r}: each rank of "
                f"{divider.name!r} has a part of the module, and {axis.name!r} needs the whole: leave one of them out"
            )
