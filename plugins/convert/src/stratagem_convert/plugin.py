"""The command of stratagem-convert: `checkpoint`."""

from __future__ import annotations

from stratagem import hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add the command by its import path."""
    cli.add_lazy("checkpoint", "stratagem_convert.command:checkpoint")
