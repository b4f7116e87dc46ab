"""What the installed distributions offer."""

from stratagem.component import API_VERSION, FEATURES, KINDS, Kind, imported
from stratagem.hookspecs import CommandGroup
from stratagem.plugins import (
    GROUP,
    BrokenPlugin,
    Catalogue,
    Offer,
    Origin,
    Selection,
    command_plugins,
    load_catalogue,
)

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
