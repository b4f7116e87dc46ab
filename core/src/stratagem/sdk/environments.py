"""For environments: the position of a process, and reading it from a launcher's variables."""

from stratagem.environments.rank_info import (
    DERIVED_PORTS,
    MOST_PROCESSES,
    LauncherEnvironment,
    RankInfo,
    derived_port,
)
from stratagem.environments.variables import first_integer, integer, missing, text

__all__ = [
    "DERIVED_PORTS",
    "MOST_PROCESSES",
    "LauncherEnvironment",
    "RankInfo",
    "derived_port",
    "first_integer",
    "integer",
    "missing",
    "text",
]
