"""Environments of clusters: the place of a process among all, read from the variables of a cluster's launcher."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stratagem_clusters.kubeflow import Kubeflow
    from stratagem_clusters.lsf import LSF
    from stratagem_clusters.mpi import MPI
    from stratagem_clusters.slurm import Slurm

_WHERE = {"LSF": "lsf", "MPI": "mpi", "Kubeflow": "kubeflow", "Slurm": "slurm"}

__all__ = ["LSF", "MPI", "Kubeflow", "Slurm"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
