"""For environments: the position of a process, and reading it from a launcher's variables."""

from stratagem.environments.rank_info import LauncherEnvironment, RankInfo, derived_port
from stratagem.environments.variables import integer, text

__all__ = ["LauncherEnvironment", "RankInfo", "derived_port", "integer", "text"]
