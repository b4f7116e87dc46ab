"""Components that the core itself offers, through the same entry point as everybody's."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem.plugin.component import Component
from stratagem.plugin.hookspecs import hookimpl

_ENVIRONMENTS = [
    # Nearest launcher first: torchrun within a Slurm job is torchrun. The last fits always, and has a
    # negative priority, so that an environment of somebody else's comes before it.
    ("torchelastic", "torchelastic:TorchElastic", "torchrun, or any torch.distributed.elastic agent"),
    ("kubeflow", "kubeflow:Kubeflow", "Kubeflow PyTorchJob"),
    ("mpi", "mpi:MPI", "mpirun of Open MPI, MPICH, Intel MPI or MVAPICH"),
    ("lsf", "lsf:LSF", "jsrun of IBM Spectrum LSF"),
    ("slurm", "slurm:Slurm", "srun of Slurm"),
    ("env", "env:Env", "any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"),
    ("single", "single:SingleProcess", "this process alone; Stratagem starts what else is needed"),
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
        for priority, (name, target, summary) in zip(range(50, -20, -10), _ENVIRONMENTS)
    ]
    precisions = [
        Component("precision", name, f"stratagem.precision.{target}", summary, aliases=aliases)
        for name, target, summary, aliases in _PRECISIONS
    ]
    return [*environments, *precisions]
