"""What this distribution offers."""

from stratagem import Capabilities, Component, hookimpl


@hookimpl
def stratagem_components():
    return [
        Component(
            "strategy",
            "frozen",
            "frozen_api_2.strategy:Frozen",
            "a replica per device, gradients averaged in buckets after backward",
            api_version=2,
            capabilities=Capabilities(
                processes="per-device",
                features=frozenset({"several_optimizers", "norm_clipping", "value_clipping", "resharding"}),
            ),
        ),
        Component("extension", "counted", "frozen_api_2.counted:Counted", "counts reductions", api_version=2),
    ]


@hookimpl
def stratagem_commands(cli):
    cli.add_lazy("thaw", "frozen_api_2.commands:thaw")
