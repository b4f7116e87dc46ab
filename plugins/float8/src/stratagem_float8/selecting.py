"""Which linear layers of a model compute in float8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Union

from torch import nn

from stratagem import ConfigError
from stratagem_float8.torchao_private import Float8Layer

Selector = Union[type[nn.Module], str, Callable[[nn.Module, str], bool]]
"""A class of modules, its name, the name of a module, or a function of a layer and its name."""
Choice = Union[Selector, Iterable[Selector], None]
"""One or several of them; None for no choice."""

MULTIPLE = 16
"""Sizes of matrices that `torch._scaled_mm` multiplies are multiples of this."""


@dataclass(frozen=True)
class Selected:
    """The linear layers of a model."""

    layers: Mapping[str, nn.Linear]
    """Name → layer that computes in float8."""
    left: Mapping[str, str]
    """Name of every other linear layer → why it doesn't."""

    def reasons(self) -> str:
        """Say why layers are left, as "2 in skip"."""
        counted = Counter(self.left.values())
        return ", ".join(f"{count} {reason}" for reason, count in counted.items()) or "it has no linear layer"

    def summary(self) -> str:
        """Say how many layers compute in float8, and how many don't."""
        total = len(self.layers) + len(self.left)
        others = f" ({self.reasons()})" if self.left else ""
        return f"{len(self.layers)} of {total} linear layers compute in float8{others}"


def select_layers(root: nn.Module, modules: Choice, skip: Choice) -> Selected:
    """Return the linear layers in `root` that are chosen and that float8 can compute, and all others.

    A layer of a class derived from `nn.Linear` is left as it is: its forward may be another.

    Raises:
        ConfigError: an element of `modules` or `skip` is of another type, or fits no layer.
    """
    linear = {name: each for name, each in root.named_modules() if isinstance(each, nn.Linear)}
    wanted = set(linear) if modules is None else _chosen(root, linear, modules, "modules")
    skipped = set() if skip is None else _chosen(root, linear, skip, "skip")
    layers, left = {}, {}
    for name, layer in linear.items():
        if name not in wanted:
            left[name] = "not in modules"
        elif name in skipped:
            left[name] = "in skip"
        elif type(layer) not in (nn.Linear, Float8Layer):
            left[name] = "of a derived class"
        elif layer.in_features % MULTIPLE or layer.out_features % MULTIPLE:
            left[name] = f"of sizes that {MULTIPLE} doesn't divide"
        else:
            layers[name] = layer
    return Selected(layers, left)


def _chosen(root: nn.Module, linear: Mapping[str, nn.Linear], choice: Choice, what: str) -> set[str]:
    """Return the names of the linear layers that a choice means."""
    chosen: set[str] = set()
    for selector in _listed(choice):
        found = {name for name, layer in linear.items() if _means(selector, root, name, layer, what)}
        if not found:
            said = selector if isinstance(selector, str) else getattr(selector, "__name__", selector)
            raise ConfigError(
                f"{what} names {said!r}, and {type(root).__name__} has no linear layer there: it has "
                f"{', '.join(linear) or 'none at all'}"
            )
        chosen |= found
    return chosen


def _listed(choice: Choice) -> list[Selector]:
    if choice is None:
        return []
    if isinstance(choice, (str, type)) or callable(choice):
        return [choice]
    return list(choice)


def _means(selector: Selector, root: nn.Module, name: str, layer: nn.Linear, what: str) -> bool:
    if not isinstance(selector, (str, type)):
        if not callable(selector):
            raise ConfigError(
                f"{what} has {selector!r}: give classes of modules, their names, names of modules, or functions of a "
                "layer and its name"
            )
        return bool(selector(layer, name))
    parts = name.split(".") if name else []
    # The layer and the modules it is in, up to the root, which stands for itself alone.
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        module = root.get_submodule(path)
        if isinstance(selector, type):
            if isinstance(module, selector):
                return True
        elif selector in (path, type(module).__name__):
            return True
    return False
