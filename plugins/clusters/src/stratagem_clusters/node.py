"""One command per node, started by hand: Stratagem starts the node's processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from stratagem.sdk.environments import LauncherEnvironment, RankInfo
from stratagem.sdk.processes import LOOPBACK
from stratagem_clusters.by_hand import complete_plan, given_variables, listed, node_rank_of

if TYPE_CHECKING:
    from stratagem import LaunchPlan


class Node(LauncherEnvironment):
    """Rank 0 of 1 until it starts the processes of its node; NODE_RANK and where nodes meet come from the variables.

    `main_port` is 0: any free port will do.
    """

    name: ClassVar[str] = "node"
    creates_processes: ClassVar[bool] = False

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> str | None:
        given = given_variables(environ)
        if not given.keys() - {"RANK", "LOCAL_RANK"}:
            return None
        return f"{listed(given)} {'is' if len(given) == 1 else 'are'} set"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._given = given_variables(environ)
        self.info = RankInfo(
            global_rank=0,
            local_rank=0,
            node_rank=node_rank_of(environ) or 0,
            world_size=1,
            local_world_size=1,
            main_address=LOOPBACK,
            main_port=0,
        )

    def complete_plan(self, plan: LaunchPlan) -> LaunchPlan:
        return complete_plan(self._given, plan)
