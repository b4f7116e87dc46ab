"""What stratagem-activations offers: the extension `activations` and its presets."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The extension `activations`, for `--use`."""
    return [
        Component(
            "extension",
            "activations",
            "stratagem_activations.extension:Activations",
            "recomputes activations of each block in backward, or keeps them in host memory",
            presets={
                "activations_full": {"mode": "full"},
                "activations_selective": {"mode": "selective"},
                "activations_offload": {"mode": "offload"},
            },
            conformance="stratagem_activations.conformance:SUBJECTS",
        )
    ]
