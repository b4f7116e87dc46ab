"""Processes that mpirun or mpiexec started: Open MPI, MPICH, Intel MPI, MVAPICH."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stratagem.errors import UsageError
from stratagem.sdk.environments import DERIVED_PORTS, LauncherEnvironment, RankInfo, derived_port
from stratagem.sdk.processes import LOOPBACK
from stratagem_clusters.variables import incomplete, integer


@dataclass(frozen=True)
class _Flavour:
    """The variables that one family of launchers sets, and the flag that makes it set more."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    export: str


_FLAVOURS = (
    _Flavour(
        launcher="Open MPI's mpirun",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        export="mpirun -x MASTER_ADDR=HOST ...",
    ),
    _Flavour(
        launcher="MVAPICH's mpirun",
        rank="MV2_COMM_WORLD_RANK",
        size="MV2_COMM_WORLD_SIZE",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        local_size="MV2_COMM_WORLD_LOCAL_SIZE",
        export="mpirun_rsh ... MASTER_ADDR=HOST PROGRAM",
    ),
    # Slurm's own PMI sets PMI_RANK and PMI_SIZE too, so the local rank belongs to the mark of mpiexec.
    _Flavour(
        launcher="mpiexec of MPICH or Intel MPI",
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
        export="mpiexec -genv MASTER_ADDR HOST ...",
    ),
    _Flavour(
        launcher="mpiexec of Cray PALS",
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="PMI_LOCAL_RANK",
        local_size="PMI_LOCAL_SIZE",
        export="mpiexec --env MASTER_ADDR=HOST ...",
    ),
)
_JOB_NUMBERS = ("SLURM_JOB_ID", "LSB_JOBID")
_DEFAULT_PORT = 29500


class MPI(LauncherEnvironment):
    """One process of an MPI launcher; MPI itself isn't used, and mpi4py isn't needed.

    MPI's launchers don't tell where rank 0 runs. MASTER_ADDR says so; without it, all processes must be
    on one node. MASTER_PORT is derived from the job's number or name where there is one, else 29500.
    """

    name: ClassVar[str] = "mpi"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        flavour = _flavour(environ)
        # jsrun is made of Open MPI and sets its variables as well, but its own say more.
        if flavour is None or "JSM_NAMESPACE_RANK" in environ:
            return None
        return f"{flavour.launcher} has set {flavour.rank}={environ[flavour.rank]}"

    @classmethod
    def detect_incomplete(cls, environ: Mapping[str, str]) -> str | None:
        if "SLURM_JOB_ID" in environ:  # Slurm's own PMI sets PMI_SIZE
            return None
        found = (incomplete(environ, f.launcher, f.size, f.rank, f.local_rank) for f in _FLAVOURS)
        return next(filter(None, found), None)

    def __init__(self, environ: Mapping[str, str]) -> None:
        flavour = _flavour(environ) or _FLAVOURS[0]
        rank = integer(environ, flavour.rank, flavour.launcher)
        world_size = integer(environ, flavour.size, flavour.launcher)
        local_world_size = integer(environ, flavour.local_size, flavour.launcher)
        address = environ.get("MASTER_ADDR", "")
        if local_world_size < 1:
            raise UsageError(f"{flavour.local_size} is {local_world_size}; it must be at least 1")
        if not address and local_world_size < world_size:
            raise UsageError(
                f"{flavour.launcher} placed {world_size} processes on several nodes and doesn't tell where"
                " rank 0 runs, and MASTER_ADDR isn't set; set it to the host of rank 0, as in"
                f" `{flavour.export}`"
            )
        self.info = RankInfo(
            global_rank=rank,
            local_rank=integer(environ, flavour.local_rank, flavour.launcher),
            # By default MPI fills node after node; with another mapping only this number is off.
            node_rank=rank // local_world_size,
            world_size=world_size,
            local_world_size=local_world_size,
            main_address=address or LOOPBACK,
            main_port=_main_port(environ),
        )


def _flavour(environ: Mapping[str, str]) -> _Flavour | None:
    return next((f for f in _FLAVOURS if f.rank in environ and f.local_rank in environ), None)


def _main_port(environ: Mapping[str, str]) -> int:
    if "MASTER_PORT" in environ:
        return integer(environ, "MASTER_PORT", "the job's script")
    for name in _JOB_NUMBERS:
        if name in environ:
            return derived_port(integer(environ, name, "the scheduler"))
    namespace = environ.get("PMIX_NAMESPACE")
    if namespace is None:
        return _DEFAULT_PORT
    # Open MPI's name of this one mpirun, equal in all of its processes.
    return DERIVED_PORTS[zlib.crc32(namespace.encode()) % len(DERIVED_PORTS)]
