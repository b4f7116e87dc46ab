"""Registers the components of stratagem-ddp."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `ddp` and its presets."""
    return [
        Component(
            "strategy",
            "ddp",
            "stratagem_ddp.strategy:DDPStrategy",
            "a replica per device, gradients averaged while backward runs",
            presets={
                "ddp_spawn": {"start_method": "spawn"},
                "ddp_fork": {"start_method": "fork"},
                "ddp_notebook": {"start_method": "fork"},
                "ddp_find_unused_parameters_false": {"find_unused_parameters": False},
                "ddp_find_unused_parameters_true": {"find_unused_parameters": True},
                "ddp_fp16": {"ddp_comm_hook": "fp16"},
                "ddp_bf16": {"ddp_comm_hook": "bf16"},
                "ddp_powersgd": {"ddp_comm_hook": "powersgd"},
                "ddp_post_local_sgd": {"ddp_comm_hook": "post_local_sgd", "model_averaging_period": 4},
                "ddp_hierarchical_sgd": {"ddp_comm_hook": "post_local_sgd", "period_group_size": "auto"},
            },
            priority=10,
            conformance="stratagem_ddp.conformance:SUBJECTS",
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
                        "elastic",
                        "whole_optimizer",
                    }
                ),
            ),
        )
    ]
