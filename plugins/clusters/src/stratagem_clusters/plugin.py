"""Declares the environments of clusters; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl

_ENVIRONMENTS = [
    # Nearest launcher first: mpirun in a Slurm job is mpirun. Core's `torchelastic` has 50, its `env` 0.
    ("kubeflow", "kubeflow:Kubeflow", "Kubeflow PyTorchJob", 40),
    ("mpi", "mpi:MPI", "mpirun of Open MPI, MPICH, Intel MPI or MVAPICH", 30),
    ("lsf", "lsf:LSF", "jsrun of IBM Spectrum LSF", 20),
    ("slurm", "slurm:Slurm", "srun of Slurm", 10),
]


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return an environment for each launcher of clusters."""
    return [
        Component("environment", name, f"stratagem_clusters.{target}", summary, priority=priority)
        for name, target, summary, priority in _ENVIRONMENTS
    ]
