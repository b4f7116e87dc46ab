"""For launchers, and for what outlives a process: fork servers, stores, words left for the next attempt."""

from stratagem.launch.fork_server import preload_fork_server
from stratagem.launch.guard import die_with
from stratagem.launch.leftovers import claimed
from stratagem.launch.network import loopback_variables
from stratagem.launch.pickling import dumps, loads
from stratagem.launch.words import can_leave_words, leave_word, word_left
from stratagem.stores import LOOPBACK, free_port, store_variables

__all__ = [
    "LOOPBACK",
    "can_leave_words",
    "claimed",
    "die_with",
    "dumps",
    "free_port",
    "leave_word",
    "loads",
    "loopback_variables",
    "preload_fork_server",
    "store_variables",
    "word_left",
]
