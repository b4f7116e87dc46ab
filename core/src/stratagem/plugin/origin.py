"""The distributions from which plugins come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """The distribution and the entry point that offer something."""

    distribution: str
    version: str
    entry_point: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True)
class BrokenPlugin:
    """An entry point that couldn't be loaded, with the reason."""

    origin: Origin
    error: BaseException
