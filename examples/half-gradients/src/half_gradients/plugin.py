"""What this distribution offers. Read at every start, so it imports neither torch nor the strategy."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `half-gradients`."""
    return [
        Component(
            kind="strategy",
            name="half-gradients",
            target="half_gradients.strategy:HalfGradients",
            summary="a replica per device, gradients averaged in 16 bits",
            conformance="half_gradients.conformance:SUBJECT",
            capabilities=Capabilities(
                processes="per-device",
                # The conformance kit tries what is declared here. Anything else is refused to users.
                features=frozenset(
                    {
                        "several_optimizers",
                        "manual_backward",
                        "closure",
                        "norm_clipping",
                        "value_clipping",
                        "resharding",
                        "whole_optimizer",
                    }
                ),
            ),
        )
    ]
