"""What stratagem-bagua offers."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `bagua` and a preset for each other algorithm."""
    return [
        Component(
            "strategy",
            "bagua",
            "stratagem_bagua.strategy:BaguaStrategy",
            "Bagua's algorithms: gradients or momenta averaged, also in 8 bits, or replicas that average with peers",
            presets={
                "bagua_bytegrad": {"algorithm": "bytegrad"},
                "bagua_decentralized": {"algorithm": "decentralized"},
                "bagua_low_precision_decentralized": {"algorithm": "low_precision_decentralized"},
                "bagua_qadam": {"algorithm": "qadam"},
                "bagua_async": {"algorithm": "async"},
            },
            conformance="stratagem_bagua.conformance:SUBJECTS",
            capabilities=Capabilities(
                processes="per-device",
                features=frozenset(
                    {
                        "several_optimizers",
                        "manual_backward",
                        "norm_clipping",
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
