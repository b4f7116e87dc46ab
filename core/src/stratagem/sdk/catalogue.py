"""What the installed distributions offer."""

from stratagem.plugin.catalogue import Catalogue, load_catalogue
from stratagem.plugin.component import API_VERSION, FEATURES, KINDS, Kind, imported
from stratagem.plugin.entry_points import GROUP
from stratagem.plugin.hookspecs import CommandGroup
from stratagem.plugin.installed import command_plugins
from stratagem.plugin.locked import LOCK_FILE, LOCKED_VARIABLE, refuse_unlocked, write_lock
from stratagem.plugin.offers import BrokenPlugin, Offer, Origin, Selection

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
    "Kind",
    "Offer",
    "Origin",
    "Selection",
    "command_plugins",
    "imported",
    "load_catalogue",
    "refuse_unlocked",
    "write_lock",
]
