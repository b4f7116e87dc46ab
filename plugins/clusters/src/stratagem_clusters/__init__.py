"""Environments of clusters: the place of a process among all, read from the variables of a cluster's launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_clusters.kubeflow import Kubeflow
    from stratagem_clusters.lsf import LSF
    from stratagem_clusters.mpi import MPI
    from stratagem_clusters.slurm import Slurm

__all__ = ["LSF", "MPI", "Kubeflow", "Slurm"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".kubeflow": "Kubeflow",
        ".lsf": "LSF",
        ".mpi": "MPI",
        ".slurm": "Slurm",
    },
)
