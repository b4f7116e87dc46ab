"""What stratagem-expert offers."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The axis `expert`."""
    return [
        Component(
            "axis",
            "expert",
            "stratagem_expert.axis:ExpertAxis",
            "experts of a mixture split among ranks, to which tokens travel (expert parallel)",
            conformance="stratagem_expert.conformance:SUBJECT",
        )
    ]
