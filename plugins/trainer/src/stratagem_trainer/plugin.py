"""What stratagem-trainer offers: the commands that train and evaluate."""

from __future__ import annotations

from stratagem import hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add them by where they are; they need stratagem-cli, which asks for them."""
    for name in ("fit", "validate", "test", "predict"):
        cli.add_lazy(name, f"stratagem_trainer.commands.stages:{name}")
