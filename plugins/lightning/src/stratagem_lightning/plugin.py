"""The command of stratagem-lightning, which rewrites imports of Lightning."""

from __future__ import annotations

from stratagem import hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add the command, which is imported when it is called. stratagem-cli calls this hook."""
    cli.add_lazy("migrate", "stratagem_lightning.migration.command:migrate")
