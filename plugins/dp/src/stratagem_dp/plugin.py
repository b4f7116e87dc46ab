"""What stratagem-dp offers."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl

_BOTH = {
    "several_optimizers",
    "closure",
    "optimizer_hooks",
    "changes_between_steps",
    "norm_clipping",
    "sparse_gradients",
    "value_clipping",
    "resharding",
    "several_devices",
    "whole_optimizer",
}
# Replicas in one process and 16-bit precision have never been supported together.
_PRECISIONS = ("32-true", "64-true")


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategies `dp` and `ddp2`."""
    return [
        Component(
            "strategy",
            "dp",
            "stratagem_dp.strategy:DataParallelStrategy",
            "one process splits each batch over its devices",
            conformance="stratagem_dp.conformance:DP",
            capabilities=Capabilities(processes="one", precisions=_PRECISIONS, features=frozenset(_BOTH)),
        ),
        Component(
            "strategy",
            "ddp2",
            "stratagem_dp.ddp2:DDP2Strategy",
            "dp within each node, ddp between nodes",
            conformance="stratagem_dp.conformance:SUBJECT",
            capabilities=Capabilities(
                processes="per-node",
                precisions=_PRECISIONS,
                features=frozenset({*_BOTH, "several_nodes"}),
            ),
        ),
    ]
