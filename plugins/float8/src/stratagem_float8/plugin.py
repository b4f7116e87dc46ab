"""What stratagem-float8 offers: the precision `float8`, its recipes, and their emulation."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl
from stratagem_float8.names import MEANINGS


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """A precision for each recipe of torchao; the emulated ones compute on any device."""
    return [
        Component(
            "precision",
            name,
            "stratagem_float8.precision:Float8",
            f"linear layers in float8, scaled {recipe}, {'emulated' if emulate else 'the rest in bfloat16'}",
            capabilities=Capabilities(accelerators=("*",) if emulate else ("cuda",)),
            requires=("torchao",),
            install_hint='pip install "stratagem-float8[engine]"',
            conformance="stratagem_float8.conformance:SUBJECTS",
        )
        for name, (recipe, emulate) in MEANINGS.items()
    ]
