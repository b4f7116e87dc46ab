"""Registers the components of stratagem-mesh."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `composition`."""
    return [
        Component(
            "strategy",
            "composition",
            "stratagem_mesh.strategy:ComposedStrategy",
            "parallelisms composed on one mesh of ranks, as --strategy shard=2+tensor=2",
            composes_axes=True,
            conformance="stratagem_mesh.conformance:SUBJECT",
            capabilities=Capabilities(
                processes="per-device",
                # Torch's loss scaler needs all gradients on one mesh.
                precisions=("32-true", "64-true", "bf16-mixed", "bf16-true", "16-true", "float8*"),
                features=frozenset(
                    {
                        "several_optimizers",
                        "manual_backward",
                        "optimizer_hooks",
                        "changes_between_steps",
                        "closure",
                        "norm_clipping",
                        "value_clipping",
                        "resharding",
                        "collective_forward",
                        "several_nodes",
                        "elastic",
                    }
                ),
            ),
        )
    ]
