"""Which weights a module begins with, and what came of loading them where the module has changed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class InitialWeights:
    """A checkpoint that a module's weights come from.

    Attributes:
        path: of the checkpoint.
        strict: whether both must have the same tensors; otherwise those that both have are loaded. Shapes
            must be equal in any case.
        rename: beginnings of names in the checkpoint → what the module has in their place; the longest that fits
            counts, once.
        skip: beginnings of names in the module whose tensors keep their values, as ["head."].
    """

    path: str
    strict: bool = True
    rename: Mapping[str, str] = field(default_factory=dict)
    skip: Sequence[str] = ()


@dataclass(frozen=True)
class WeightsReport:
    """What came of loading weights into a module; names are the module's, renamed ones included.

    Attributes:
        path: of the checkpoint.
        loaded: have the checkpoint's values.
        missing: the checkpoint has none, so that the module's values stay.
        unexpected: of the checkpoint, which the module lacks.
        mismatched: name → shapes in the checkpoint and in the module.
        skipped: kept their values on request.
    """

    path: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors from {self.path}"]
        for names, what in (
            (self.missing, "missing there, which keep their values"),
            (self.unexpected, "unexpected, which are left out"),
            (self.skipped, "skipped"),
        ):
            if names:
                parts.append(f"{len(names)} {what}: {some(names)}")
        return "; ".join(parts)


def renamed(name: str, rename: Mapping[str, str]) -> str:
    """`name` with the longest of the beginnings in `rename` that it has exchanged for what that stands for."""
    fitting = [old for old in rename if name.startswith(old)]
    if not fitting:
        return name
    old = max(fitting, key=len)
    return rename[old] + name.removeprefix(old)


def some(names: Sequence[str]) -> str:
    """The first of some names, for a sentence."""
    return (
        ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        if names
        else "nothing"
    )
