"""The command of stratagem-verify: `verify`."""

from __future__ import annotations

from stratagem import hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add the command. It is imported when it is called."""
    cli.add_lazy("verify", "stratagem_verify.command:verify")
