"""Registers the components of stratagem-fsdp."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `fsdp` and its presets, and the axes `shard` and `replicate`."""
    return [
        Component(
            "axis",
            "shard",
            "stratagem_fsdp.axes:ShardAxis",
            "parameters, gradients and optimizer states in shards, gathered block by block",
            aliases=("fsdp",),
        ),
        Component(
            "axis",
            "replicate",
            "stratagem_fsdp.axes:ReplicateAxis",
            "copies of the model, or of its shards, whose gradients are averaged",
            aliases=("ddp",),
        ),
        Component(
            "strategy",
            "fsdp",
            "stratagem_fsdp.strategy:FSDPStrategy",
            "parameters, gradients and optimizer states in shards, gathered block by block",
            presets={
                "fsdp_offload": {"cpu_offload": True},
                "fsdp_hybrid": {"sharding_strategy": "HYBRID_SHARD"},
            },
            priority=5,
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
                        "value_clipping",
                        "resharding",
                        "collective_forward",
                        "several_nodes",
                        "elastic",
                    }
                ),
            ),
        ),
    ]
