"""`--compile` and `--activations`: presets of the extensions that change how blocks of a model compute."""

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
"""Name of an extension → what its flag takes; `blocks` stands for the preset `compile_blocks`. Its package may be
missing: the error then names the extension."""
_HELP = {
    "compile": "Compile each block of the model, or the whole forward, by torch.compile.",
    "activations": "Keep fewer activations of each block for backward, or keep them in host memory.",
}


def block_flags(group: cloup.OptionGroup) -> Callable[[Any], Any]:
    """Return the decorator of a command that has the flags, in a group of its help."""

    def decorate(command: Any) -> Any:
        for name, choices in reversed(_CHOICES.items()):
            command = cloup.option(f"--{name}", group=group, type=click.Choice(choices), help=_HELP[name])(
                command
            )
        return command

    return decorate


def with_block_flags(settings: Settings, keywords: Mapping[str, Any]) -> Settings:
    """Choose the presets that flags name, in place of those of the same extension in a configuration file.

    Args:
        settings: merged from files and other flags.
        keywords: of the command; it may have none of the flags.
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
