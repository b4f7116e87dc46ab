"""What stratagem-testing offers: the commands `conformance` and `new`."""

from __future__ import annotations

from stratagem import hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add the commands, which are imported when they are asked for."""
    cli.add_lazy("conformance", "stratagem_testing.commands.conformance:conformance")
    cli.add_lazy("new", "stratagem_testing.commands.new:new")
