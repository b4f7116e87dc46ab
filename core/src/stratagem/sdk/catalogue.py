"""The components of the installed distributions."""

from stratagem.installed.catalogue import Catalogue, load_catalogue
from stratagem.installed.entry_points import GROUP
from stratagem.installed.locked import LOCK_FILE, LOCKED_VARIABLE, refuse_unlocked, require_locked, write_lock
from stratagem.installed.plugins import command_plugins
from stratagem.names.index import Index, known_plugins
from stratagem.plugin.component import API_VERSION, FEATURES, KINDS, Kind, imported
from stratagem.plugin.hookspecs import CommandGroup
from stratagem.plugin.origin import BrokenPlugin, Origin

__all__ = [
    "API_VERSION",
    "FEATURES",
    "GROUP",
    "KINDS",
    "LOCKED_VARIABLE",
    "LOCK_FILE",
    "BrokenPlugin",
    "Catalogue",
    "CommandGroup",
    "Index",
    "Kind",
    "Origin",
    "command_plugins",
    "imported",
    "known_plugins",
    "load_catalogue",
    "refuse_unlocked",
    "require_locked",
    "write_lock",
]
