"""What stratagem-hpu offers; imports neither torch nor habana_frameworks."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl

INSTALL = "run Intel's `habanalabs-installer.sh install --type pytorch`"
LIBRARY = "habana_frameworks"
# Neither float64 nor sparse tensors, by Intel's support matrix, and no documented GradScaler for float16.
PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")
FEATURES = frozenset(
    {
        "several_optimizers",
        "manual_backward",
        "norm_clipping",
        "value_clipping",
        "resharding",
        "whole_optimizer",
    }
)


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategies `hpu_single` and `hpu_parallel`, and the accelerator `hpu`."""
    return [
        Component(
            "strategy",
            "hpu_single",
            "stratagem_hpu.single:SingleHPUStrategy",
            "one Gaudi processor, one process",
            requires=(LIBRARY,),
            install_hint=INSTALL,
            priority=1,
            capabilities=Capabilities(
                accelerators=("hpu",), precisions=PRECISIONS, processes="one", features=FEATURES
            ),
        ),
        Component(
            "strategy",
            "hpu_parallel",
            "stratagem_hpu.parallel:HPUParallelStrategy",
            "a replica per Gaudi processor, gradients averaged over HCCL while backward runs",
            requires=(LIBRARY,),
            install_hint=INSTALL,
            priority=1,
            capabilities=Capabilities(
                accelerators=("hpu",),
                precisions=PRECISIONS,
                processes="per-device",
                # A processor belongs to the process that used it first, and isn't inherited.
                start_methods=("forkserver", "spawn", "popen"),
                features=FEATURES | {"several_nodes"},
            ),
        ),
        Component(
            "accelerator",
            "hpu",
            "stratagem_hpu.accelerator:HPUAccelerator",
            "Intel Gaudi processors",
            priority=50,
            install_hint=INSTALL,
            capabilities=Capabilities(strategies=("hpu_single", "hpu_parallel")),
        ),
    ]
