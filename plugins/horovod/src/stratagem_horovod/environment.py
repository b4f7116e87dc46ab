"""Processes that horovodrun started, without MPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stratagem_clusters.variables import incomplete, integer, missing, text

from stratagem.errors import UsageError
from stratagem.sdk.environments import LauncherEnvironment, RankInfo, derived_port
from stratagem.sdk.processes import LOOPBACK

_LAUNCHER = "horovodrun"
_SERVER = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")


class Horovod(LauncherEnvironment):
    """One process of `horovodrun --gloo`; one of `horovodrun --mpi` is a process of mpirun.

    horovodrun doesn't tell where rank 0 runs. MASTER_ADDR says so; without it, it is taken to run on the host of
    horovodrun, as with the first host of its `-H`. MASTER_PORT is derived from the port of its rendezvous.
    """

    name: ClassVar[str] = "horovod"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        if missing(environ, "HOROVOD_RANK", "HOROVOD_SIZE", *_SERVER):
            return None
        return f"horovodrun has set HOROVOD_RANK={environ['HOROVOD_RANK']}"

    @classmethod
    def detect_incomplete(cls, environ: Mapping[str, str]) -> str | None:
        return incomplete(environ, _LAUNCHER, "HOROVOD_SIZE", "HOROVOD_RANK", *_SERVER)

    def __init__(self, environ: Mapping[str, str]) -> None:
        world_size = integer(environ, "HOROVOD_SIZE", _LAUNCHER)
        local_world_size = integer(environ, "HOROVOD_LOCAL_SIZE", _LAUNCHER)
        server, port = text(environ, _SERVER[0], _LAUNCHER), integer(environ, _SERVER[1], _LAUNCHER)
        if environ.get("HOROVOD_ELASTIC") == "1":
            raise UsageError(
                "horovodrun runs elastically (HOROVOD_ELASTIC=1), with a number of processes that changes, which "
                "isn't available: leave out --min-np, --max-np and --host-discovery-script"
            )
        address = LOOPBACK if local_world_size == world_size else server
        self.info = RankInfo(
            global_rank=integer(environ, "HOROVOD_RANK", _LAUNCHER),
            local_rank=integer(environ, "HOROVOD_LOCAL_RANK", _LAUNCHER),
            # The rank among processes of this local rank, which is the node's where all nodes have as many.
            node_rank=integer(environ, "HOROVOD_CROSS_RANK", _LAUNCHER),
            world_size=world_size,
            local_world_size=local_world_size,
            main_address=environ.get("MASTER_ADDR") or address,
            main_port=integer(environ, "MASTER_PORT", "the job's script")
            if "MASTER_PORT" in environ
            else derived_port(port),
        )
