"""Environments: the place of a process among all, read from the variables of the launcher that started it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from stratagem_clusters.env import Env
    from stratagem_clusters.kubeflow import Kubeflow
    from stratagem_clusters.lsf import LSF
    from stratagem_clusters.mpi import MPI
    from stratagem_clusters.node import Node
    from stratagem_clusters.slurm import Slurm
    from stratagem_clusters.torchelastic import TorchElastic

__all__ = ["LSF", "MPI", "Env", "Kubeflow", "Node", "Slurm", "TorchElastic"]

if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".env": "Env",
            ".kubeflow": "Kubeflow",
            ".lsf": "LSF",
            ".mpi": "MPI",
            ".node": "Node",
            ".slurm": "Slurm",
            ".torchelastic": "TorchElastic",
        },
    )
