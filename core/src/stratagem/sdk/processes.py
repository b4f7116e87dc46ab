"""For launchers, and for what outlives a process: fork servers, stores, words left for the next attempt."""

from stratagem.collectives.stores import LOOPBACK, free_port, store_variables
from stratagem.launchers.fork_server import preload_fork_server
from stratagem.launchers.guard import die_with
from stratagem.launchers.leftovers import claimed
from stratagem.launchers.network import loopback_variables
from stratagem.launchers.pickling import loads, sending
from stratagem.launchers.words import can_leave_words, leave_word, word_left

__all__ = [
    "LOOPBACK",
    "can_leave_words",
    "claimed",
    "die_with",
    "free_port",
    "leave_word",
    "loads",
    "loopback_variables",
    "preload_fork_server",
    "sending",
    "store_variables",
    "word_left",
]
