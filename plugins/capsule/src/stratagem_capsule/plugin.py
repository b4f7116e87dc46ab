"""What stratagem-capsule offers: the extension `capsule` and the command `replay`."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The extension `capsule`, for `--use`."""
    return [
        Component(
            "extension",
            "capsule",
            "stratagem_capsule.extension:Capsule",
            "keeps the batches and random numbers of steps, so that one that fails can be run again",
        )
    ]


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add the command, which is imported when it is asked for."""
    cli.add_lazy("replay", "stratagem_capsule.command:replay")
