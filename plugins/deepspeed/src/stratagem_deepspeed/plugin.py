"""Registers the components of stratagem-deepspeed."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl

INSTALL = "pip install 'stratagem[deepspeed]'"


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `deepspeed` and its presets."""
    return [
        Component(
            "strategy",
            "deepspeed",
            "stratagem_deepspeed.strategy:DeepSpeedStrategy",
            "optimizer states, gradients and parameters in shards, on the DeepSpeed engine (ZeRO)",
            presets={
                "deepspeed_stage_1": {"stage": 1},
                "deepspeed_stage_2": {"stage": 2},
                "deepspeed_stage_2_offload": {"stage": 2, "offload_optimizer": True},
                "deepspeed_stage_3": {"stage": 3},
                "deepspeed_stage_3_offload": {
                    "stage": 3,
                    "offload_optimizer": True,
                    "offload_parameters": True,
                },
                "deepspeed_stage_3_offload_nvme": {
                    "stage": 3,
                    "offload_optimizer": True,
                    "offload_optimizer_device": "nvme",
                    "offload_parameters": True,
                    "offload_params_device": "nvme",
                },
            },
            requires=("deepspeed",),
            install_hint=INSTALL,
            conformance="stratagem_deepspeed.conformance:SUBJECTS",
            capabilities=Capabilities(
                accelerators=("cpu", "cuda"),
                precisions=("32-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true", "float8*"),
                processes="per-device",
                features=frozenset(
                    {
                        "norm_clipping",
                        "resharding",
                        "collective_forward",
                        "several_nodes",
                    }
                ),
            ),
        )
    ]
