"""What stratagem-single offers."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `single`."""
    return [
        Component(
            "strategy",
            "single",
            "stratagem_single.strategy:SingleDeviceStrategy",
            "one device, one process",
            aliases=("single_device",),
            priority=10,
            capabilities=Capabilities(
                processes="one",
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
                        "whole_optimizer",
                    }
                ),
            ),
        )
    ]
