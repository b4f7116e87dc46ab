"""What stratagem-places offers: the place `local`, and the commands for runs that are somewhere else."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The place `local`."""
    return [
        Component(
            "place",
            "local",
            "stratagem_places.local:LocalPlace",
            "this machine, in the background: continues when the terminal is closed",
        )
    ]


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add them by where they are; they need stratagem-cli, which asks for them."""
    for name in ("runs", "logs", "stop"):
        cli.add_lazy(name, f"stratagem_places.commands.runs:{name}")
    cli.add_lazy("places", "stratagem_places.commands.places:places")
