"""Declares the accelerator `mps`; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return the one component of this distribution."""
    return [
        Component(
            kind="accelerator",
            name="mps",
            target="stratagem_mps.accelerator:MpsAccelerator",
            priority=30,
            summary="the GPU of an Apple silicon machine",
        )
    ]
