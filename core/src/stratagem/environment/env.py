"""Processes that were given PyTorch's `env://` variables by something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stratagem.environment.place import LOOPBACK, Place, PlacedEnvironment
from stratagem.environment.variables import first_integer, integer, missing, text
from stratagem.errors import UsageError

_THIS_HOST = ("localhost", LOOPBACK, "::1")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
_LAUNCHER = "a launcher of torch.distributed"


class Env(PlacedEnvironment):
    """RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as `init_process_group("env://")` reads them.

    LOCAL_RANK and LOCAL_WORLD_SIZE are needed as well, unless MASTER_ADDR is this host: then all
    processes are on one node.
    """

    name: ClassVar[str] = "env"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        if missing(environ, "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            return None
        return "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set"

    def __init__(self, environ: Mapping[str, str]) -> None:
        rank = integer(environ, "RANK", _LAUNCHER)
        world_size = integer(environ, "WORLD_SIZE", _LAUNCHER)
        address = text(environ, "MASTER_ADDR", _LAUNCHER)
        if any(name in environ for name in _LOCAL_SIZES):
            local_world_size = first_integer(environ, _LOCAL_SIZES, _LAUNCHER)
        elif world_size == 1 or address in _THIS_HOST:
            local_world_size = world_size
        else:
            raise UsageError(
                f"RANK, WORLD_SIZE and MASTER_ADDR={address!r} don't tell how many processes run on this"
                " node; set LOCAL_WORLD_SIZE and LOCAL_RANK as well, or start the processes with torchrun"
            )
        if local_world_size < 1:
            raise UsageError(f"LOCAL_WORLD_SIZE is {local_world_size}; it must be at least 1")
        packed_rank = rank % local_world_size
        self.place = Place(
            global_rank=rank,
            local_rank=integer(environ, "LOCAL_RANK", _LAUNCHER) if "LOCAL_RANK" in environ else packed_rank,
            node_rank=rank // local_world_size,
            world_size=world_size,
            local_world_size=local_world_size,
            main_address=address,
            main_port=integer(environ, "MASTER_PORT", _LAUNCHER),
        )
