"""Which weights a module begins with, and the report of loading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class InitialWeights:
    """A checkpoint as the source of a module's weights.

    Attributes:
        path: of the checkpoint.
        strict: whether both must have the same tensors; otherwise those that both have are loaded. Shapes
            must be equal in any case.
        rename: prefixes of names in the checkpoint → prefixes in the module. The longest matching prefix is replaced,
            once.
        skip: prefixes of names in the module whose tensors keep their values, as ["head."].
    """

    path: str
    strict: bool = True
    rename: Mapping[str, str] = field(default_factory=dict)
    skip: Sequence[str] = ()


@dataclass(frozen=True)
class WeightsReport:
    """Report of loading weights into a module. Names are those of the module, after renaming.

    Attributes:
        path: of the checkpoint.
        loaded: tensors that got the checkpoint's values.
        missing: tensors that the checkpoint lacks; they keep the module's values.
        unexpected: tensors of the checkpoint that the module lacks.
        mismatched: name → shapes in the checkpoint and in the module.
        skipped: tensors that kept their values on request.
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
    """Return `name` with its longest prefix in `rename` replaced."""
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
