"""What the installed distributions offer."""

from stratagem.plugin.catalogue import GROUP, Catalogue, command_plugins, load_catalogue
from stratagem.plugin.component import API_VERSION, FEATURES, KINDS, Kind, imported
from stratagem.plugin.hookspecs import CommandGroup
from stratagem.plugin.origin import BrokenPlugin, Origin

__all__ = [
    "API_VERSION",
    "FEATURES",
    "GROUP",
    "KINDS",
    "BrokenPlugin",
    "Catalogue",
    "CommandGroup",
    "Kind",
    "Origin",
    "command_plugins",
    "imported",
    "load_catalogue",
]
