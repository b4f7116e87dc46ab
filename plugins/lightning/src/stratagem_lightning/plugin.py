"""What stratagem-lightning offers: the command that rewrites imports of Lightning."""

from __future__ import annotations

from stratagem import hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add it by where it is; it needs stratagem-cli, which asks for it."""
    cli.add_lazy("migrate", "stratagem_lightning.migration.command:migrate")
