"""The run's plan, as the record has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.runs import assemble

if TYPE_CHECKING:
    from stratagem import RunConfig


def plan_of(config: RunConfig) -> list[list[str]]:
    """Return a row for each component of the run: its kind, its name, and its origin with the reason.

    Args:
        config: this worker's configuration.
    """
    return [
        [each.kind, each.name, " · ".join(filter(None, (each.origin, each.why)))]
        for each in assemble(config).resolved
    ]
