"""Declares the accelerator `torch`; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """Return the one component of this distribution."""
    return [
        Component(
            kind="accelerator",
            name="torch",
            target="stratagem_torch.accelerator:TorchAccelerator",
            priority=20,
            summary="any other device that torch.accelerator knows: xpu, npu, privateuse1 and so on",
        )
    ]
