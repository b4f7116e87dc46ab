"""Processes that were given PyTorch's `env://` variables by something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from stratagem.errors import UsageError
from stratagem.sdk.environments import LauncherEnvironment, RankInfo, RequestedSize
from stratagem_clusters.by_hand import (
    LAUNCHER,
    LOCAL_SIZES,
    THIS_HOST,
    completed,
    given_variables,
    is_one_of_several,
)
from stratagem_clusters.variables import first_integer, integer, text

if TYPE_CHECKING:
    from typing_extensions import Self

_FOUR = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


class Env(LauncherEnvironment):
    """RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as `init_process_group("env://")` reads them.

    LOCAL_RANK and LOCAL_WORLD_SIZE are needed as well, unless MASTER_ADDR is this host: then all
    processes are on one node. Of processes started by hand, what follows from the other variables and
    from what the run asks for may be missing: `completed`.
    """

    name: ClassVar[str] = "env"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        if given_variables(environ).keys() >= _FOUR:
            return "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set"
        if not is_one_of_several(environ):
            return None
        return f"{', '.join(given_variables(environ))} are set, as by hand for one of several processes"

    @classmethod
    def for_run(cls, environ: Mapping[str, str], size: RequestedSize) -> Self:
        return cls(completed(environ, size) if cls.detect(environ) else environ)

    def __init__(self, environ: Mapping[str, str]) -> None:
        if is_one_of_several(environ) and not given_variables(environ).keys() >= _FOUR:
            environ = completed(environ, RequestedSize())
        rank = integer(environ, "RANK", LAUNCHER)
        world_size = integer(environ, "WORLD_SIZE", LAUNCHER)
        address = text(environ, "MASTER_ADDR", LAUNCHER)
        if any(name in environ for name in LOCAL_SIZES):
            local_world_size = first_integer(environ, LOCAL_SIZES, LAUNCHER)
        elif world_size == 1 or address in THIS_HOST:
            local_world_size = world_size
        else:
            raise UsageError(
                f"RANK, WORLD_SIZE and MASTER_ADDR={address!r} don't tell how many processes run on this"
                " node; set LOCAL_WORLD_SIZE and LOCAL_RANK as well, or start the processes with torchrun"
            )
        if local_world_size < 1:
            raise UsageError(f"LOCAL_WORLD_SIZE is {local_world_size}; it must be at least 1")
        packed_rank = rank % local_world_size
        self.info = RankInfo(
            global_rank=rank,
            local_rank=integer(environ, "LOCAL_RANK", LAUNCHER) if "LOCAL_RANK" in environ else packed_rank,
            node_rank=rank // local_world_size,
            world_size=world_size,
            local_world_size=local_world_size,
            main_address=address,
            main_port=integer(environ, "MASTER_PORT", LAUNCHER),
        )
