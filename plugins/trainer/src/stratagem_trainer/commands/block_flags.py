"""`--compile` and `--activations`: choose extensions that change how the blocks of a model compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click
import cloup
from stratagem_cli.settings import Settings

NONE = "none"
_CHOICES = {
    "compile": (NONE, "blocks", "model"),
    "activations": (NONE, "selective", "full", "offload"),
}
"""Name of an extension → values of its flag. Value "blocks" of "compile" is the preset `compile_blocks`, and so on.

If an extension's package is missing, the error names the extension.
"""
_HELP = {
    "compile": "Compile each block of the model, or the whole forward, with torch.compile.",
    "activations": "Keep fewer activations of each block for backward, or keep them in host memory.",
}


def block_flags(group: cloup.OptionGroup) -> Callable[[Any], Any]:
    """Return a decorator that adds the flags to a command, in a group of its help."""

    def decorate(command: Any) -> Any:
        for name, choices in reversed(_CHOICES.items()):
            command = cloup.option(f"--{name}", group=group, type=click.Choice(choices), help=_HELP[name])(
                command
            )
        return command

    return decorate


def with_block_flags(settings: Settings, keywords: Mapping[str, Any]) -> Settings:
    """Choose the presets that the flags name. They replace presets of the same extension from a configuration file.

    Args:
        settings: merged from files and other flags.
        keywords: keywords of the command. It may have none of the flags.
    """
    extensions = tuple(settings.selection.get("extensions", ()))
    for name, choices in _CHOICES.items():
        chosen = keywords.get(name)
        if chosen is not None:
            presets = {name, *(f"{name}_{each}" for each in choices)}
            extensions = tuple(each for each in extensions if each not in presets)
            extensions += () if chosen == NONE else (f"{name}_{chosen}",)
    if extensions == tuple(settings.selection.get("extensions", ())):
        return settings
    return replace(settings, selection={**settings.selection, "extensions": extensions})
