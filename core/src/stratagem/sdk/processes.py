"""For launchers, and for what outlives a process: stores, states kept for the next attempt."""

from stratagem.collectives.stores import LOOPBACK, free_port, serve_store, store_variables
from stratagem.launchers.base import check_start_method
from stratagem.launchers.restart_state import (
    LAUNCH_VARIABLE,
    can_save_restart_state,
    restart_state,
    save_restart_state,
)
from stratagem.launchers.torch_private import COMPILER
from stratagem.names.deprecation import replaced_names
from stratagem.names.offered import MOVED

__all__ = [
    "COMPILER",
    "LAUNCH_VARIABLE",
    "LOOPBACK",
    "can_save_restart_state",
    "check_start_method",
    "free_port",
    "restart_state",
    "save_restart_state",
    "serve_store",
    "store_variables",
]

__getattr__ = replaced_names(__name__, MOVED[__name__])
