"""Declares the accelerator `sim`; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return the one component of this distribution."""
    return [
        Component(
            kind="accelerator",
            name="sim",
            target="stratagem_sim.accelerator:SimAccelerator",
            summary="a device for tests: asynchronous, without hardware, and slow",
            automatic=False,
        )
    ]
