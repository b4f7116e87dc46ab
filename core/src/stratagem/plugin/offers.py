"""What a distribution offers: a component and where it comes from, or the error for which it couldn't be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratagem.errors import BrokenPluginError
from stratagem.plugin.component import Component


@dataclass(frozen=True)
class Origin:
    """Where a component comes from."""

    distribution: str
    version: str
    entry_point: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True)
class Offer:
    """A component and its origin."""

    component: Component
    origin: Origin


@dataclass(frozen=True)
class BrokenPlugin:
    """An entry point that couldn't be loaded, with the reason."""

    origin: Origin
    error: BaseException


@dataclass(frozen=True)
class Selection:
    """What a name stands for: a component, and keyword values when the name is a preset."""

    offer: Offer
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def component(self) -> Component:
        return self.offer.component

    def refuse_missing(self) -> None:
        """Refuse a component that lacks a library.

        Raises:
            BrokenPluginError: says which, and how to get it.
        """
        component = self.component
        if missing := component.missing():
            hint = component.install_hint or f"pip install {' '.join(missing)}"
            raise BrokenPluginError(
                f"{component.kind} {component.name!r} of {self.offer.origin} needs {', '.join(missing)}, which "
                f"isn't installed: {hint}"
            )

    def load(self) -> Any:
        """Import the component's target.

        Raises:
            BrokenPluginError: it lacks a library, or can't be imported; the original error is the cause.
        """
        component, origin = self.component, self.offer.origin
        self.refuse_missing()
        try:
            return component.load()
        except Exception as error:
            hint = f"; {component.install_hint}" if component.install_hint else ""
            raise BrokenPluginError(
                f"{component.kind} {component.name!r} of {origin} can't be loaded: "
                f"{type(error).__name__}: {error}{hint}"
            ) from error
