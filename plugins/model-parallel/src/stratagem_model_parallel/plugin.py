"""Registers the components of stratagem-model-parallel."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategies `model_parallel` and `context_parallel`, and the axes `tensor` and `context`."""
    return [
        Component(
            "axis",
            "tensor",
            "stratagem_model_parallel.axis:TensorAxis",
            "layers split among ranks that read the same batches (tensor and sequence parallel)",
            conformance="stratagem_model_parallel.conformance:AXIS_SUBJECT",
        ),
        Component(
            "axis",
            "context",
            "stratagem_model_parallel.context.axis:ContextAxis",
            "long sequences cut among ranks that read the same batches (Ulysses, ring attention)",
            conformance="stratagem_model_parallel.conformance:CONTEXT_AXIS_SUBJECT",
        ),
        Component(
            "strategy",
            "model_parallel",
            "stratagem_model_parallel.strategy:ModelParallelStrategy",
            "layers split among ranks (tensor and sequence parallel), also with shards over a second dimension",
            conformance="stratagem_model_parallel.conformance:SUBJECT",
            capabilities=Capabilities(
                processes="per-device",
                # No 16-mixed: torch's loss scaler needs all gradients on one mesh.
                precisions=("32-true", "64-true", "bf16-mixed", "bf16-true", "16-true"),
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
                    }
                ),
            ),
        ),
        Component(
            "strategy",
            "context_parallel",
            "stratagem_model_parallel.context.strategy:ContextParallelStrategy",
            "long sequences distributed among ranks (Ulysses, ring attention), with data parallelism",
            conformance="stratagem_model_parallel.conformance:CONTEXT_SUBJECT",
            capabilities=Capabilities(
                processes="per-device",
                features=frozenset(
                    {
                        "several_optimizers",
                        "manual_backward",
                        "optimizer_hooks",
                        "changes_between_steps",
                        "closure",
                        "norm_clipping",
                        "sparse_gradients",
                        "value_clipping",
                        "resharding",
                        "several_nodes",
                        "whole_optimizer",
                    }
                ),
            ),
        ),
    ]
