"""What a configuration's words mean, as far as it can be told without torch."""

from stratagem.config import Devices
from stratagem.devices import count_of
from stratagem.environment.by_hand import node_rank_of
from stratagem.environment.torchelastic import TorchElastic
from stratagem.launch.nodes import node_count
from stratagem.precision.names import PRECISIONS
from stratagem.renamed import RENAMED, renamed_selection
from stratagem.script_flags import CONFIG_VARIABLE
from stratagem.select_environment import choose_environment, requested_size

__all__ = [
    "CONFIG_VARIABLE",
    "PRECISIONS",
    "RENAMED",
    "Devices",
    "TorchElastic",
    "choose_environment",
    "count_of",
    "node_count",
    "node_rank_of",
    "renamed_selection",
    "requested_size",
]
