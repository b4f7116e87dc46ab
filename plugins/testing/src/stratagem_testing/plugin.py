"""The commands of stratagem-testing: `conformance` and `new`."""

from __future__ import annotations

from stratagem import hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add the commands. They are imported when they are called."""
    cli.add_lazy("conformance", "stratagem_testing.commands.conformance:conformance")
    cli.add_lazy("new", "stratagem_testing.commands.new:new")
