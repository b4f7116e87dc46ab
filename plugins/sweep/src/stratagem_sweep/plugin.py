"""What stratagem-sweep offers: the command `sweep`."""

from __future__ import annotations

from stratagem import hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add the command, which is imported when it is asked for."""
    cli.add_lazy("sweep", "stratagem_sweep.command:sweep")
