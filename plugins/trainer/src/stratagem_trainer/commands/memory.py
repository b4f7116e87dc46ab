"""`--checkpoint-memory`: use an extension and a callback of stratagem-memory-checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import cloup
from stratagem_cli.settings import Settings
from stratagem_cli.typed import plain

MEMORY_EXTENSION, MEMORY_CALLBACK = "peer_memory", "stratagem_memory_checkpoint.MemoryCheckpoint"
"""Names of the extension and its callback. If the package is missing, the error names the extension."""


def memory_flag(group: cloup.OptionGroup) -> Callable[[Any], Any]:
    """Return a decorator that adds the flag to a command, in a group of its help."""
    return cloup.option(
        "--checkpoint-memory",
        group=group,
        type=click.IntRange(1),
        metavar="STEPS",
        help="Every n steps, keep a checkpoint in the memory of each node and of a neighbor, for --max-restarts.",
    )


def with_memory(settings: Settings, steps: int | None) -> Settings:
    """Add the extension and the callback that keep checkpoints in memory every `steps` steps."""
    if steps is None:
        return settings
    callback = {"class_path": MEMORY_CALLBACK, "init_args": {"every_n_train_steps": steps}}
    given = plain(settings.trainer.get("callbacks")) or []  # from --set or from a file
    callbacks = given if isinstance(given, list) else [given]
    extensions = (*settings.selection.get("extensions", ()), MEMORY_EXTENSION)
    return replace(
        settings,
        selection={**settings.selection, "extensions": extensions},
        trainer={**settings.trainer, "callbacks": [*callbacks, callback]},
    )
