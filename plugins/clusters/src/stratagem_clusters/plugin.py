"""Declares the environments of clusters; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl

_ENVIRONMENTS = [
    # The nearer launcher has the higher priority: torchrun within a Slurm job is torchrun. Core's `single` has -10.
    ("torchelastic", "torchelastic:TorchElastic", "torchrun, or any torch.distributed.elastic agent", 50),
    ("kubeflow", "kubeflow:Kubeflow", "Kubeflow PyTorchJob", 40),
    ("mpi", "mpi:MPI", "mpirun of Open MPI, MPICH, Intel MPI or MVAPICH", 30),
    ("lsf", "lsf:LSF", "jsrun of IBM Spectrum LSF", 20),
    ("slurm", "slurm:Slurm", "srun of Slurm", 10),
    # An environment of someone else's has 0 where it says none.
    ("env", "env:Env", "any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT", 0),
    ("node", "node:Node", "one command per node, with NODE_RANK and MASTER_ADDR set by hand", -5),
]
_VARIABLES = {
    "mpi": ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE"),
    "lsf": ("JSM_NAMESPACE_SIZE",),
    "slurm": ("SLURM_STEP_NUM_TASKS",),
    "env": ("WORLD_SIZE", "RANK", "LOCAL_RANK"),
    "node": ("NODE_RANK", "GROUP_RANK"),
}
"""Environment → variables by which its launcher says that there are several processes."""


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return an environment for each launcher of clusters."""
    return [
        Component(
            "environment",
            name,
            f"stratagem_clusters.{target}",
            summary,
            priority=priority,
            launcher_variables=_VARIABLES.get(name, ()),
        )
        for name, target, summary, priority in _ENVIRONMENTS
    ]
