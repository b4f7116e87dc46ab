"""What stratagem-cli offers: the commands that list, examine and run."""

from __future__ import annotations

from stratagem import hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add them by where they are."""
    cli.add_lazy("run", "stratagem_cli.script:run")
    cli.add_lazy("strategies", "stratagem_cli.listing:strategies")
    cli.add_lazy("accelerators", "stratagem_cli.listing:accelerators")
    cli.add_lazy("plugins", "stratagem_cli.listing:plugins")
    cli.add_lazy("doctor", "stratagem_cli.doctor:doctor")
    cli.add_lazy("completion", "stratagem_cli.completion:completion")
