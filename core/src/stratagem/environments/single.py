"""The environment of a single process that no launcher has started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stratagem.collectives.stores import LOOPBACK
from stratagem.environments.rank_info import LauncherEnvironment, RankInfo


class SingleProcess(LauncherEnvironment):
    """Rank 0 of 1. Stratagem itself starts the processes that a run needs.

    `main_port` is 0, for any free port.
    """

    name: ClassVar[str] = "single"
    creates_processes: ClassVar[bool] = False

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        return "no launcher has set its variables"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.info = RankInfo(
            global_rank=0,
            local_rank=0,
            node_rank=0,
            world_size=1,
            local_world_size=1,
            main_address=LOOPBACK,
            main_port=0,
        )
