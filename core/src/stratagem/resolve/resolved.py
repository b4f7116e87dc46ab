"""`Resolved`: what a run has of one kind of component."""

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
    """What a name or an object came to: a line of the printed plan."""

    kind: Kind
    name: str
    """The name by which it was chosen."""
    value: Any
    """The object; for a precision and a checkpointer, which only workers need, what makes it there."""
    origin: str = GIVEN
    """Distribution and version."""
    why: str = ""
    capabilities: Capabilities = field(default_factory=Capabilities)
    component: str = ""
    """Name of its component; empty where it comes from none."""
    preload: tuple[str, ...] = ()
    """Modules that workers import beforehand."""


def resolved_from(component: Component, value: Any, name: str = "", why: str = "") -> Resolved:
    """Return what `component` came to; it is called by its own name, unless another is given."""
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
    """Imports a component when it is made.

    A checkpointer's imports take half a second, which a launching process would spend for nothing: only
    workers make one.
    """

    def __init__(self, component: Component, options: Mapping[str, Any] | None = None) -> None:
        self.component, self.options = component, {**component.options, **(options or {})}

    def __call__(self, *arguments: Any) -> Any:
        return self.component.load()(*arguments, **as_keywords(self.options))


def as_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as keyword arguments: "async" is a word of Python's, and `async_` the parameter for it."""
    return {f"{name}_" if iskeyword(name) else name: value for name, value in options.items()}


@dataclass(frozen=True)
class Constant:
    """A factory that returns what the caller gave."""

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
