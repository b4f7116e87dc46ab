"""What the checks of accelerators, precisions, checkpointers, environments and launchers are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from stratagem.sdk.catalogue import Kind, load_catalogue
from stratagem_testing.workers import TIMEOUT_S, shared_workers

if TYPE_CHECKING:
    from stratagem_testing.recipe import Recipe

T = TypeVar("T")


@dataclass(frozen=True)
class PartSubject:
    """A component to be tried; frozen and picklable: every worker has a copy."""

    kind: ClassVar[str]
    """What it is, as in `Component.kind`."""

    part: str | Callable[..., Any]
    """Its name, or its class or factory at the top level of a module."""
    waivers: Mapping[str, str] = field(default_factory=dict)
    """Name of a check → why it is expected to fail."""

    world_size: int = 1
    """Processes of the run; set for each check."""
    check: str = ""
    """Name of the check that goes on; set for each check."""
    folder: str = ""
    """For files; set for each check, empty at its beginning."""

    @property
    def name(self) -> str:
        """How reports call it."""
        return self.part if isinstance(self.part, str) else self.part.__name__

    @property
    def features(self) -> frozenset[str]:
        """What it declares; parts other than strategies declare nothing that is checked."""
        return frozenset()

    def world_sizes(self) -> tuple[int, ...]:
        """Numbers of processes at which it can be tried."""
        return (1,)

    def load(self) -> Callable[..., Any]:
        """Return its class or factory."""
        if not isinstance(self.part, str):
            return self.part
        loaded: Callable[..., Any] = load_catalogue().find(cast("Kind", self.kind), self.part).load()
        return loaded

    def run(self, function: Callable[..., T], *args: Any, timeout_s: float = TIMEOUT_S) -> list[T]:
        """Run `function(subject, *args)` in every rank; return the results by rank."""
        return shared_workers().run(self.world_size, function, self, *args, timeout_s=timeout_s)

    def alone(self, function: Callable[..., T], *args: Any, timeout_s: float = TIMEOUT_S) -> T:
        """Run `function(subject, *args)` in a fresh process that no launcher made."""
        result: T = shared_workers().alone(function, self, *args, timeout_s=timeout_s)
        return result


@dataclass(frozen=True)
class AcceleratorSubject(PartSubject):
    """An accelerator: its name, or its class."""

    kind: ClassVar[str] = "accelerator"
    """The kind of component."""


@dataclass(frozen=True)
class PrecisionSubject(PartSubject):
    """A precision: its name, or its class together with the name that it is asked by."""

    kind: ClassVar[str] = "precision"
    """The kind of component."""

    asked_as: str = ""
    """Name by which a run asks for it, such as "bf16-mixed"; needed where `part` isn't a name."""
    device: str = "cpu"
    """torch's name of the device on which it is tried."""
    tolerance: float = 0.1
    """How far the losses of 20 steps may be from those in 32 bits."""
    recipe: Callable[..., Recipe] | None = None
    """Makes what is trained from fields of `Recipe`, for a precision that computes layers of some sizes alone."""

    @property
    def name(self) -> str:
        return self.asked_as or super().name

    def world_sizes(self) -> tuple[int, ...]:
        return (1, 2)

    def make(self) -> Any:
        """Make the precision as a run does."""
        import torch

        return self.load()(self.name, torch.device(self.device))

    def make_recipe(self) -> Recipe:
        """Make what is trained."""
        from stratagem_testing.recipe import Recipe

        return (self.recipe or Recipe)()


@dataclass(frozen=True)
class CheckpointSubject(PartSubject):
    """A checkpointer: its name, or what makes it from a run's collectives."""

    kind: ClassVar[str] = "checkpoint"
    """The kind of component."""

    def world_sizes(self) -> tuple[int, ...]:
        return (1, 2)


@dataclass(frozen=True)
class EnvironmentSubject(PartSubject):
    """An environment: its name or its class, and what its launcher sets."""

    kind: ClassVar[str] = "environment"
    """The kind of component."""

    examples: tuple[tuple[Mapping[str, str], Mapping[str, Any]], ...] = ()
    """Variables of some process → its place: values of `global_rank`, `local_rank`, `node_rank`,
    `world_size`, `local_world_size`, `main_address` and `main_port`, or some of them."""


@dataclass(frozen=True)
class LauncherSubject(PartSubject):
    """A launcher: its name, or what makes it from a `LaunchPlan`."""

    kind: ClassVar[str] = "launcher"
    """The kind of component."""

    start_method: str = "fork"
    """How its plan says that processes are started: forkserver, spawn, popen or fork."""


@dataclass(frozen=True)
class LoggerSubject(PartSubject):
    """A logger: its name, or its class."""

    kind: ClassVar[str] = "logger"
    """The kind of component."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword values for its constructor."""
    read: Callable[[str], Iterable[tuple[int, Mapping[str, float]]]] | None = None
    """Reads back what is in a run's folder: (step, values) in the order in which they were logged. A function at the
    top level of a module; without one, what it has written isn't compared."""


@dataclass(frozen=True)
class ExtensionSubject(PartSubject):
    """An extension: its name, or its class."""

    kind: ClassVar[str] = "extension"
    """The kind of component."""

    changes_numbers: bool = False
    """Whether a run with it has other numbers than one without, by design."""

    def world_sizes(self) -> tuple[int, ...]:
        return (1, 2)


@dataclass(frozen=True)
class AxisSubject(PartSubject):
    """An axis: its name, or its class."""

    kind: ClassVar[str] = "axis"
    """The kind of component."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword values for its constructor, in addition to the size."""
    recipe: Callable[..., Recipe] | None = None
    """Makes what is trained from fields of `Recipe`, for an axis that splits modules which others don't need, such as
    experts. Two such axes can't be tried beside each other."""

    def world_sizes(self) -> tuple[int, ...]:
        return (1, 2, 4)

    def make(self, size: int) -> Any:
        """Make an axis of some ranks."""
        return self.load()(size, **self.options)


@dataclass(frozen=True)
class PlaceSubject(PartSubject):
    """A place: its name, or its class."""

    kind: ClassVar[str] = "place"
    """The kind of component."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword values for its constructor."""
