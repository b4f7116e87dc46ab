"""What stratagem-horovod offers; imports neither torch nor Horovod."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl

INSTALL = "python -m stratagem_horovod.build"


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `horovod`, and the environment of what horovodrun has started."""
    return [
        Component(
            "strategy",
            "horovod",
            "stratagem_horovod.strategy:HorovodStrategy",
            "a replica per device, gradients averaged by Horovod while backward runs",
            requires=("horovod",),
            install_hint=INSTALL,
            preload=("horovod.torch",),
            conformance="stratagem_horovod.conformance:SUBJECT",
            capabilities=Capabilities(
                accelerators=("cpu", "cuda"),
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
                        "several_nodes",
                        "whole_optimizer",
                    }
                ),
            ),
        ),
        # As near as a launcher can be: what it has started may be in a job of Slurm, or in a pod.
        Component(
            "environment",
            "horovod",
            "stratagem_horovod.environment:Horovod",
            "horovodrun of Horovod",
            priority=45,
            launcher_variables=("HOROVOD_SIZE",),
        ),
    ]
