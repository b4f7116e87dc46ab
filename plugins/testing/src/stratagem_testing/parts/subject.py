"""Subjects of the checks for components other than strategies."""

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
    """A component to check. Frozen and picklable: every worker has a copy."""

    kind: ClassVar[str]
    """The kind of component; see `Component.kind`."""

    part: str | Callable[..., Any]
    """Its name, or its class or factory at the top level of a module."""
    waivers: Mapping[str, str] = field(default_factory=dict)
    """Name of a check → why it is expected to fail."""

    world_size: int = 1
    """Number of processes of the run; set for each check."""
    check: str = ""
    """Name of the running check; set for each check."""
    folder: str = ""
    """Folder for files; set for each check, and empty at its start."""

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.part if isinstance(self.part, str) else self.part.__name__

    @property
    def features(self) -> frozenset[str]:
        """Declared features. Only strategies declare features that checks need."""
        return frozenset()

    def world_sizes(self) -> tuple[int, ...]:
        """Return the numbers of processes with which the component can be tried."""
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
        """Run `function(subject, *args)` in a new process that no launcher started."""
        result: T = shared_workers().alone(function, self, *args, timeout_s=timeout_s)
        return result


@dataclass(frozen=True)
class AcceleratorSubject(PartSubject):
    """An accelerator: its name, or its class."""

    kind: ClassVar[str] = "accelerator"
    """The kind of component."""


@dataclass(frozen=True)
class PrecisionSubject(PartSubject):
    """A precision: its name, or its class together with the requested name."""

    kind: ClassVar[str] = "precision"
    """The kind of component."""

    asked_as: str = ""
    """Name under which a run requests it, such as "bf16-mixed"; required if `part` isn't a name."""
    device: str = "cpu"
    """torch's name of the device to try it on."""
    tolerance: float = 0.1
    """Allowed difference of the losses of 20 steps from those in 32 bits."""
    recipe: Callable[..., Recipe] | None = None
    """Returns the recipe to train, given fields of `Recipe`, for a precision that supports only some layer sizes."""

    @property
    def name(self) -> str:
        return self.asked_as or super().name

    def world_sizes(self) -> tuple[int, ...]:
        return (1, 2)

    def make(self) -> Any:
        """Return the precision, made as a run makes it."""
        import torch

        return self.load()(self.name, torch.device(self.device))

    def make_recipe(self) -> Recipe:
        """Return the recipe to train."""
        from stratagem_testing.recipe import Recipe

        return (self.recipe or Recipe)()


@dataclass(frozen=True)
class CheckpointSubject(PartSubject):
    """A checkpointer: its name, or a function that makes it from a run's collectives."""

    kind: ClassVar[str] = "checkpoint"
    """The kind of component."""

    def world_sizes(self) -> tuple[int, ...]:
        return (1, 2)


@dataclass(frozen=True)
class EnvironmentSubject(PartSubject):
    """An environment: its name or its class, and variables that its launcher sets."""

    kind: ClassVar[str] = "environment"
    """The kind of component."""

    examples: tuple[tuple[Mapping[str, str], Mapping[str, Any]], ...] = ()
    """Variables of a process → expected values of `global_rank`, `local_rank`, `node_rank`, `world_size`,
    `local_world_size`, `main_address` and `main_port`, or of some of them."""


@dataclass(frozen=True)
class LauncherSubject(PartSubject):
    """A launcher: its name, or a function that makes it from a `LaunchPlan`."""

    kind: ClassVar[str] = "launcher"
    """The kind of component."""

    start_method: str = "fork"
    """Start method in its plan: forkserver, spawn, popen or fork."""


@dataclass(frozen=True)
class LoggerSubject(PartSubject):
    """A logger: its name, or its class."""

    kind: ClassVar[str] = "logger"
    """The kind of component."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for its constructor."""
    read: Callable[[str], Iterable[tuple[int, Mapping[str, float]]]] | None = None
    """Reads the rows in a run's folder: (step, values) in the order in which they were logged. A function at the top
    level of a module. Without it, the written rows aren't compared."""


@dataclass(frozen=True)
class ExtensionSubject(PartSubject):
    """An extension: its name, or its class."""

    kind: ClassVar[str] = "extension"
    """The kind of component."""

    changes_numbers: bool = False
    """Whether a run with it has other results than one without, by design."""

    def world_sizes(self) -> tuple[int, ...]:
        return (1, 2)


@dataclass(frozen=True)
class AxisSubject(PartSubject):
    """An axis: its name, or its class."""

    kind: ClassVar[str] = "axis"
    """The kind of component."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for its constructor, in addition to the size."""
    recipe: Callable[..., Recipe] | None = None
    """Returns the recipe to train, given fields of `Recipe`. For an axis that splits modules which other recipes
    don't have, such as experts. Two such axes can't be tried together."""

    def world_sizes(self) -> tuple[int, ...]:
        return (1, 2, 4)

    def make(self, size: int) -> Any:
        """Return an axis with this number of ranks."""
        return self.load()(size, **self.options)


@dataclass(frozen=True)
class PlaceSubject(PartSubject):
    """A place: its name, or its class."""

    kind: ClassVar[str] = "place"
    """The kind of component."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for its constructor."""
