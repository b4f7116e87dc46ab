"""For environments: the position of a process."""

from stratagem.environments.base import RequestedSize
from stratagem.environments.rank_info import (
    DERIVED_PORTS,
    MOST_PROCESSES,
    LauncherEnvironment,
    RankInfo,
    derived_port,
)

__all__ = [
    "DERIVED_PORTS",
    "MOST_PROCESSES",
    "LauncherEnvironment",
    "RankInfo",
    "RequestedSize",
    "derived_port",
]
