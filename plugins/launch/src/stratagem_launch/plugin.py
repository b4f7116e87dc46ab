"""Declares the launcher `elastic`; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return the one component of this distribution."""
    return [
        Component(
            kind="launcher",
            name="elastic",
            target="stratagem_launch.elastic:ElasticLauncher",
            summary="processes of this node, supervised and restarted together by torch elastic",
        )
    ]
