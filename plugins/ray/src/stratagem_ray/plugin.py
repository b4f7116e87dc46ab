"""Declares the place `ray`; imports no ray."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return the one component of this distribution."""
    return [
        Component(
            "place",
            "ray",
            "stratagem_ray.place:RayPlace",
            "a Ray cluster, or one that is started here: one actor per node",
        )
    ]
