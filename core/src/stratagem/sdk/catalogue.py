"""What the installed distributions offer."""

from stratagem.plugin.catalogue import (
    GROUP,
    BrokenPlugin,
    Catalogue,
    Offer,
    Origin,
    Selection,
    command_plugins,
    load_catalogue,
)
from stratagem.plugin.component import API_VERSION, FEATURES, KINDS, Kind, imported
from stratagem.plugin.hookspecs import CommandGroup

__all__ = [
    "API_VERSION",
    "FEATURES",
    "GROUP",
    "KINDS",
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
]
