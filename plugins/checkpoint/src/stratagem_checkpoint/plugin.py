"""What stratagem-checkpoint offers: the checkpointer `directory` and the command `checkpoint`."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl
from stratagem.sdk.catalogue import CommandGroup


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The checkpointer `directory`."""
    return [
        Component(
            "checkpoint",
            "directory",
            "stratagem_checkpoint.directory:DirectoryCheckpointer",
            "a directory of safetensors and JSON, portable between strategies",
            preload=("stratagem_checkpoint.draft",),
        )
    ]


@hookimpl
def stratagem_commands(cli: CommandGroup) -> None:
    """Add the command by where it is."""
    cli.add_lazy("checkpoint", "stratagem_checkpoint.commands.checkpoint:checkpoint")
