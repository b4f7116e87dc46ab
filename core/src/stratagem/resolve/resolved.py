"""`Resolved`: the component that a run has of one kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from stratagem.plugin.component import Capabilities, Component, Kind

if TYPE_CHECKING:
    import torch

GIVEN = "given by the caller"


@dataclass(frozen=True)
class Resolved:
    """The component that a name or an object stands for. Each is a line of the printed plan."""

    kind: Kind
    name: str
    """The name by which it was chosen."""
    value: Any
    """The object. For precisions and checkpointers, which only workers need, a function that makes it."""
    origin: str = GIVEN
    """Distribution and version."""
    why: str = ""
    capabilities: Capabilities = field(default_factory=Capabilities)
    component: str = ""
    """Name of its declared component; empty if it has none."""
    preload: tuple[str, ...] = ()
    """Modules that workers import beforehand."""


def resolved_from(component: Component, value: Any, name: str = "", why: str = "") -> Resolved:
    """Return the `Resolved` of a component. `name` is the component's own unless given."""
    return Resolved(
        kind=component.kind,
        name=name or component.name,
        value=value,
        origin=str(component.origin),
        why=why,
        capabilities=component.capabilities,
        component=component.name,
        preload=component.modules(),
    )


class Deferred:
    """Makes a component, and imports it only then.

    A checkpointer's imports take half a second. Only workers make one, so the launching process can save that time.
    """

    def __init__(self, component: Component, options: Mapping[str, Any] | None = None) -> None:
        self.component, self.options = component, {**component.options, **(options or {})}

    def __call__(self, *arguments: Any) -> Any:
        return self.component.load()(*arguments, **as_keywords(self.options))


def as_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as keyword arguments: the parameter for "async", which is a keyword of Python, is `async_`."""
    return {f"{name}_" if iskeyword(name) else name: value for name, value in options.items()}


@dataclass(frozen=True)
class Constant:
    """A factory that returns the caller's object."""

    value: Any

    def __call__(self, *_: Any) -> Any:
        return self.value


@dataclass(frozen=True)
class GivenPrecision:
    """A factory that returns the caller's precision for the device of a process."""

    value: Any

    def __call__(self, name: str, device: torch.device) -> Any:
        from stratagem.precision.base import Precision

        return self.value.for_device(device) if isinstance(self.value, Precision) else self.value
