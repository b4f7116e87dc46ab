"""Registers the checkpointer `directory`."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


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
