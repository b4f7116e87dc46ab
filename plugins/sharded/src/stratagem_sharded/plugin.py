"""What stratagem-sharded offers."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl

_BOTH = {
    "several_optimizers",
    "norm_clipping",
    "value_clipping",
    "optimizer_hooks",
    "resharding",
    "several_nodes",
    "elastic",
}


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategies `ddp_sharded` (ZeRO-1) and `ddp_fully_sharded` (ZeRO-2)."""
    return [
        Component(
            "strategy",
            "ddp_sharded",
            "stratagem_sharded.strategy:DDPShardedStrategy",
            "ddp whose ranks distribute the optimizer states (ZeRO-1)",
            presets={"ddp_sharded_spawn": {"start_method": "spawn"}},
            conformance="stratagem_sharded.conformance:SUBJECT",
            capabilities=Capabilities(
                processes="per-device", features=frozenset({*_BOTH, "manual_backward", "sparse_gradients"})
            ),
        ),
        Component(
            "strategy",
            "ddp_fully_sharded",
            "stratagem_sharded.fully:DDPFullyShardedStrategy",
            "ranks distribute the optimizer states and gradients (ZeRO-2)",
            conformance="stratagem_sharded.conformance:FULLY",
            capabilities=Capabilities(
                processes="per-device", features=frozenset({*_BOTH, "closure", "collective_forward"})
            ),
        ),
    ]
