"""Registers the components of stratagem-fairscale. Imports neither torch nor FairScale."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl

VERSION = "0.4.13"
"""The last release of FairScale. The plugin uses its private names, which a test checks."""
INSTALL = f"pip install fairscale=={VERSION}"

_BOTH = {
    "several_optimizers",
    "manual_backward",
    "optimizer_hooks",
    "changes_between_steps",
    "norm_clipping",
    "value_clipping",
    "resharding",
}
# No float16: ranks have different gradients, and would have to agree on whether scaled ones overflowed.
_SHARDED_PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "float8*")


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategies `fairscale_sharded` and `fairscale_pipe`."""
    return [
        Component(
            "strategy",
            "fairscale_sharded",
            "stratagem_fairscale.strategy:FairScaleShardedStrategy",
            "ranks distribute optimizer states and gradients, by FairScale's OSS and ShardedDDP",
            requires=("fairscale",),
            install_hint=INSTALL,
            conformance="stratagem_fairscale.conformance:SHARDED",
            capabilities=Capabilities(
                accelerators=("cpu", "cuda"),
                processes="per-device",
                precisions=_SHARDED_PRECISIONS,
                features=frozenset({*_BOTH, "several_nodes", "elastic"}),
            ),
        ),
        Component(
            "strategy",
            "fairscale_pipe",
            "stratagem_fairscale.pipe:FairScalePipeStrategy",
            "one process runs layers on several devices, by FairScale's Pipe",
            requires=("fairscale",),
            install_hint=INSTALL,
            conformance="stratagem_fairscale.conformance:PIPE",
            capabilities=Capabilities(
                accelerators=("cpu", "cuda"),
                processes="one",
                features=frozenset(
                    {*_BOTH, "closure", "several_devices", "sparse_gradients", "whole_optimizer"}
                ),
            ),
        ),
    ]
