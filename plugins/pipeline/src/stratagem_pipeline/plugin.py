"""Registers the components of stratagem-pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `pipeline`, and the axis of that name."""
    return [
        Component(
            "axis",
            "pipeline",
            "stratagem_pipeline.axis:PipelineAxis",
            "layers in stages, through which batches flow in micro-batches",
        ),
        Component(
            "strategy",
            "pipeline",
            "stratagem_pipeline.strategy:PipelineStrategy",
            "layers in stages on several devices, through which batches flow in parts",
            conformance="stratagem_pipeline.conformance:SUBJECT",
            capabilities=Capabilities(
                processes="per-device",
                # No float16: stages would have to agree on whether scaled gradients overflowed in each step.
                precisions=("32-true", "64-true", "bf16-mixed", "bf16-true", "float8*"),
                features=frozenset(
                    {
                        "several_optimizers",
                        "norm_clipping",
                        "value_clipping",
                        "resharding",
                        "collective_forward",
                        "several_nodes",
                    }
                ),
            ),
        ),
    ]
