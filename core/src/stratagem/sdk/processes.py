"""For launchers, and for what outlives a process: fork servers, stores, states kept for the next attempt."""

from stratagem.collectives.stores import LOOPBACK, free_port, store_variables
from stratagem.launchers.base import check_start_method
from stratagem.launchers.fork_server import preload_fork_server
from stratagem.launchers.guard import die_with
from stratagem.launchers.leftovers import folder_lock
from stratagem.launchers.rendezvous.network import loopback_variables
from stratagem.launchers.restart_state import can_save_restart_state, restart_state, save_restart_state
from stratagem.launchers.sending.pickling import loads, sending
from stratagem.launchers.torch_private import COMPILER

__all__ = [
    "COMPILER",
    "LOOPBACK",
    "can_save_restart_state",
    "check_start_method",
    "die_with",
    "folder_lock",
    "free_port",
    "loads",
    "loopback_variables",
    "preload_fork_server",
    "restart_state",
    "save_restart_state",
    "sending",
    "store_variables",
]
