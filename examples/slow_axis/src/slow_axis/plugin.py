"""What this distribution offers. Read at every start, so it imports neither torch nor the axis."""

from stratagem import Component, hookimpl


@hookimpl
def stratagem_components():
    return [
        Component(
            kind="axis",
            name="slow",
            target="slow_axis.axis:SlowAxis",
            summary="copies that average their parameters every few steps",
        )
    ]
