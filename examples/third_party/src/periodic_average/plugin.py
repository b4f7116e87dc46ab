"""What this distribution offers. Read at every start, so it imports neither torch nor the strategy."""

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components():
    return [
        Component(
            kind="strategy",
            name="periodic",
            target="periodic_average.strategy:PeriodicAverage",
            summary="a replica per device, parameters averaged every few steps",
            presets={"periodic_rarely": {"period": 64}},
            capabilities=Capabilities(
                processes="per-device",
                features=frozenset(
                    {"several_optimizers", "manual_backward", "norm_clipping", "value_clipping", "resharding"}
                ),
            ),
        ),
        Component(
            kind="extension",
            name="traffic",
            target="periodic_average.traffic:Traffic",
            summary="counts what the ranks say to each other outside of backward",
        ),
    ]
