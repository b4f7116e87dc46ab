"""Declares the accelerator `cuda`; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return the one component of this distribution."""
    return [
        Component(
            kind="accelerator",
            name="cuda",
            target="stratagem_cuda.accelerator:CudaAccelerator",
            priority=40,
            summary="NVIDIA GPUs by CUDA, AMD GPUs by ROCm",
            aliases=("gpu",),
        )
    ]
