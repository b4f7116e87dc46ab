"""The meaning of a configuration's values, as far as it is known without torch."""

from stratagem.accelerators.indices import count_of
from stratagem.config import Devices, path_text
from stratagem.launchers.nodes import node_count
from stratagem.precision.names import PRECISIONS
from stratagem.resolve.environment import choose_environment, requested_size
from stratagem.runtime.script_flags import CONFIG_VARIABLE

__all__ = [
    "CONFIG_VARIABLE",
    "PRECISIONS",
    "Devices",
    "choose_environment",
    "count_of",
    "node_count",
    "path_text",
    "requested_size",
]
