"""Records of components, and small classes that they name, for a catalogue made by hand."""

from __future__ import annotations

from typing import Any

import torch

import stratagem
from stratagem.accelerators.base import Accelerator
from stratagem.installed.catalogue import Catalogue
from stratagem.plugin.component import Availability, Capabilities, Component
from stratagem.plugin.origin import Origin


class Here(Accelerator):
    """Stands for a machine with devices of the type meta."""

    name = "here"

    def availability(self) -> Availability:
        return Availability(True, "2 devices")

    def device_count(self) -> int:
        return 2

    def device(self, index: int) -> torch.device:
        assert 0 <= index < self.device_count()
        return torch.device("meta")

    def refuse_precision(self, precision: str) -> str | None:
        return "too narrow for it" if precision == "narrow" else None


class Second(Here):
    """Another one that is available, of devices of the type cpu."""

    name = "second"

    def device_count(self) -> int:
        return 1

    def device(self, index: int) -> torch.device:
        assert index == 0
        return torch.device("cpu")


class Absent(Here):
    """One whose devices this machine doesn't have."""

    name = "absent"

    def availability(self) -> Availability:
        return Availability(False, "no driver")


class Plain(stratagem.Strategy):
    """A strategy with one setting."""

    def __init__(self, size: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.size = size


class Derived(Plain):
    """As a user derives one."""


class Other(Plain):
    """Derived, and declares something else."""

    capabilities = Capabilities(features=frozenset({"manual_backward"}))


class NoStrategy:
    """What a plugin might name by mistake."""


def component(kind: Any, name: str, target: str = "", **fields: Any) -> Component:
    """Return a record; `target` is a class of this module."""
    capabilities = Capabilities(
        **{key: fields.pop(key) for key in list(fields) if key in Capabilities.__dataclass_fields__}
    )
    where = f"components:{target or 'Plain'}"
    record = Component(kind, name, where, "", capabilities=capabilities, **fields)
    object.__setattr__(record, "origin", Origin("a-party", "1.0", "a_party"))
    return record


def catalogue(*components: Component) -> Catalogue:
    """Return the catalogue of these alone."""
    return Catalogue(components)
