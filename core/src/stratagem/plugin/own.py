"""Components that the core itself offers, through the same entry point as everybody's."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem.plugin.component import Component
from stratagem.plugin.hookspecs import hookimpl

_ENVIRONMENTS = [
    # The nearer launcher has the higher priority: torchrun within a Slurm job is torchrun. The last fits always,
    # and comes after an environment of somebody else's, whose priority is 0 where it says none.
    ("torchelastic", "torchelastic:TorchElastic", "torchrun, or any torch.distributed.elastic agent", 50),
    ("env", "env:Env", "any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT", 0),
    ("single", "single:SingleProcess", "this process alone; Stratagem starts what else is needed", -10),
]

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
    """Environments and precisions."""
    environments = [
        Component("environment", name, f"stratagem.environments.{target}", summary, priority=priority)
        for name, target, summary, priority in _ENVIRONMENTS
    ]
    precisions = [
        Component("precision", name, f"stratagem.precision.{target}", summary, aliases=aliases)
        for name, target, summary, aliases in _PRECISIONS
    ]
    return [*environments, *precisions]
