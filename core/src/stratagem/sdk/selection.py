"""What a configuration's words mean, as far as it can be told without torch."""

from stratagem.accelerators.indices import count_of
from stratagem.config import Devices
from stratagem.environments.by_hand import node_rank_of
from stratagem.environments.torchelastic import TorchElastic
from stratagem.launchers.nodes import node_count
from stratagem.names.renamed import RENAMED, renamed_selection
from stratagem.precision.names import PRECISIONS
from stratagem.resolve.environment import choose_environment, requested_size
from stratagem.runtime.script_flags import CONFIG_VARIABLE

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
