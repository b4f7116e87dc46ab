"""What stratagem-ipu offers; imports neither torch nor poptorch."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl

INSTALL = "`pip install poptorch-*.whl` from Graphcore's Poplar SDK"
LIBRARY = "poptorch"


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategy `ipu_strategy` and the accelerator `ipu`."""
    return [
        Component(
            "strategy",
            "ipu_strategy",
            "stratagem_ipu.strategy:IPUStrategy",
            "a replica per Graphcore IPU, in one process; forward, backward and step are one program",
            requires=(LIBRARY,),
            install_hint=INSTALL,
            priority=1,
            capabilities=Capabilities(
                accelerators=("ipu",),
                precisions=("32-true",),
                processes="one",
                # Gradients never leave the device: nothing can clip them, look at them or step by hand.
                features=frozenset({"several_devices", "resharding", "whole_optimizer"}),
            ),
        ),
        Component(
            "accelerator",
            "ipu",
            "stratagem_ipu.accelerator:IPUAccelerator",
            "Graphcore IPUs",
            # Its one strategy refuses most of what others do: no one gets it without asking.
            priority=-10,
            install_hint=INSTALL,
            capabilities=Capabilities(strategies=("ipu_strategy",)),
        ),
    ]
