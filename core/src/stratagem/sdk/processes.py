"""For launchers: stores, start methods."""

from stratagem.collectives.stores import LOOPBACK, free_port, serve_store, store_file, store_variables
from stratagem.launchers.base import check_start_method
from stratagem.launchers.torch_private import COMPILER

__all__ = [
    "COMPILER",
    "LOOPBACK",
    "check_start_method",
    "free_port",
    "serve_store",
    "store_file",
    "store_variables",
]
