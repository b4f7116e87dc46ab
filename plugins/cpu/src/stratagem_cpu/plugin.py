"""Declares the accelerator `cpu`; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return the one component of this distribution."""
    return [
        Component(
            kind="accelerator",
            name="cpu",
            target="stratagem_cpu.accelerator:CpuAccelerator",
            priority=10,
            summary="the cores of this machine; devices are processes",
        )
    ]
