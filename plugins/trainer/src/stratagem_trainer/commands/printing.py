"""What a command prints when it is done, and which process does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stratagem_cli.settings import Settings


def is_reporting(settings: Settings) -> bool:
    """Whether this process is the one that prints: where a launcher made the processes, rank 0."""
    from stratagem_cli.chosen import environment_here

    from stratagem.sdk.selection import node_rank_of

    selection, environment = settings.selection, environment_here(settings.selection)
    node_rank = selection.get("node_rank")
    if node_rank is None and not environment.creates_processes:
        node_rank = node_rank_of(os.environ)
    return environment.global_rank == 0 and node_rank in (None, 0)


def print_metrics(metrics: dict[str, float]) -> None:
    """Print a line per metric, sorted."""
    width = max(map(len, metrics), default=0)
    for name in sorted(metrics):
        click.echo(f"{name:<{width}}  {metrics[name]:.6g}")
