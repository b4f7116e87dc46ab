"""What a command prints at its end, and which process prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stratagem_cli.settings import Settings


def is_reporting(settings: Settings) -> bool:
    """Return whether this process prints. If a launcher started several, only rank 0 does."""
    from stratagem_cli.chosen import environment_here

    environment, node_rank = environment_here(settings.selection), settings.selection.get("node_rank")
    return environment.global_rank == 0 and (environment.node_rank if node_rank is None else node_rank) == 0


def print_metrics(metrics: dict[str, float]) -> None:
    """Print one line per metric, sorted by name."""
    width = max(map(len, metrics), default=0)
    for name in sorted(metrics):
        click.echo(f"{name:<{width}}  {metrics[name]:.6g}")
