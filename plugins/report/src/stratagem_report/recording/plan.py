"""The run's plan, for the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.sdk.runs import assemble

if TYPE_CHECKING:
    from stratagem import RunConfig


def plan_of(config: RunConfig) -> list[list[str]]:
    """Return what the run is made of, a row for each part: its kind, its name, where it comes from and why.

    Args:
        config: this worker's.
    """
    return [
        [each.kind, each.name, " · ".join(filter(None, (each.origin, each.why)))]
        for each in assemble(config).resolved
    ]
