"""Components that core offers, through the same entry point as every plugin."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem.plugin.component import Component
from stratagem.plugin.hookspecs import hookimpl

_SINGLE = "this process alone; Stratagem starts what else is needed"

_PRECISIONS = [
    ("32-true", "full:FullPrecision", "float32 throughout", ("32",)),
    ("64-true", "full:FullPrecision", "float64 throughout", ("64",)),
    ("bf16-mixed", "mixed:MixedPrecision", "bfloat16 autocast, float32 parameters", ("bf16",)),
    ("16-mixed", "mixed:ScaledPrecision", "float16 autocast with loss scaling", ("16",)),
    ("bf16-true", "true16:TruePrecision", "bfloat16 throughout", ()),
    ("16-true", "true16:TruePrecision", "float16 throughout", ()),
]


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Offer the fallback environment `single`, tried after all others, and the precisions."""
    single = Component(
        "environment", "single", "stratagem.environments.single:SingleProcess", _SINGLE, priority=-10
    )
    precisions = [
        Component("precision", name, f"stratagem.precision.{target}", summary, aliases=aliases)
        for name, target, summary, aliases in _PRECISIONS
    ]
    return [single, *precisions]
