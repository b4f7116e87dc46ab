"""What stratagem-testing offers: the commands `conformance` and `new`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.hookspecs import hookimpl

if TYPE_CHECKING:
    from stratagem.cli.commands import LazyGroup


@hookimpl
def stratagem_commands(cli: LazyGroup) -> None:
    """Add both commands, which are imported when they are asked for."""
    cli.add_lazy("conformance", "stratagem_testing.commands.conformance:conformance")
    cli.add_lazy("new", "stratagem_testing.commands.new:new")
