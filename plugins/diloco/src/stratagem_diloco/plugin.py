"""What stratagem-diloco offers."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `diloco` and its preset `streaming_diloco`."""
    return [
        Component(
            "strategy",
            "diloco",
            "stratagem_diloco.strategy:DiLoCoStrategy",
            "replicas step independently, and take an outer step together every 100 steps",
            presets={
                "streaming_diloco": {"fragments": 4, "overlap_steps": 5, "outer_grad_dtype": "int8"},
            },
            conformance="stratagem_diloco.conformance:SUBJECTS",
            capabilities=Capabilities(
                processes="per-device",
                # Not 16-mixed: only the replicas whose gradients overflow would skip a step.
                precisions=("32-true", "64-true", "bf16-mixed", "bf16-true", "16-true", "float8*"),
                features=frozenset(
                    {
                        "several_optimizers",
                        "norm_clipping",
                        "sparse_gradients",
                        "value_clipping",
                        "resharding",
                        "several_nodes",
                        "elastic",
                        "whole_optimizer",
                    }
                ),
            ),
        )
    ]
