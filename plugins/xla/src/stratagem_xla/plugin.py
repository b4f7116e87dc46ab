"""What stratagem-xla offers; imports neither torch nor torch_xla."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem import Capabilities, Component, hookimpl

INSTALL = "pip install 'stratagem[xla]'"
STRATEGIES = ("xla", "single_xla", "xla_fsdp")
ACCELERATORS = ("tpu", "xla")
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")

# Not "closure": LBFGS makes other tensors at every evaluation, and XLA would compile for minutes.
ONE_DEVICE = frozenset(
    {
        "several_optimizers",
        "manual_backward",
        "norm_clipping",
        "value_clipping",
        "resharding",
        "whole_optimizer",
    }
)


@hookimpl
def stratagem_components() -> Sequence[Component]:
    """The strategies `xla`, `single_xla` and `xla_fsdp`, and the accelerators `xla` and `tpu`."""
    return [
        _strategy(
            "xla",
            "strategy:XLAStrategy",
            "a replica on each XLA device, in one process (SPMD)",
            {"tpu": {}, "tpu_spawn": {"spmd": False, "start_method": "spawn"}},
            {"several_devices"},
            conformance="stratagem_xla.conformance:XLA",
        ),
        _strategy(
            "single_xla",
            "single:SingleDeviceXLAStrategy",
            "one XLA device",
            {"single_tpu": {}},
            priority=1,
            conformance="stratagem_xla.conformance:SINGLE",
        ),
        _strategy(
            "xla_fsdp",
            "fsdp:XLAFSDPStrategy",
            "parameters, gradients and optimizer states in shards on XLA devices, in one process (SPMD)",
            {},
            {"several_devices"},
            conformance="stratagem_xla.conformance:FSDP",
        ),
        *_accelerators(),
    ]


def _strategy(
    name: str,
    target: str,
    summary: str,
    presets: dict[str, dict[str, object]],
    further: set[str] = frozenset(),  # type: ignore[assignment]  # read only
    priority: int = 0,
    conformance: str = "",
) -> Component:
    return Component(
        "strategy",
        name,
        f"stratagem_xla.{target}",
        summary,
        presets=presets,
        priority=priority,
        requires=("torch_xla",),
        install_hint=INSTALL,
        conformance=conformance,
        capabilities=Capabilities(
            accelerators=ACCELERATORS, precisions=PRECISIONS, processes="one", features=ONE_DEVICE | further
        ),
    )


def _accelerators() -> list[Component]:
    both = {"install_hint": INSTALL, "capabilities": Capabilities(strategies=STRATEGIES)}
    return [
        Component(
            "accelerator",
            "tpu",
            "stratagem_xla.accelerator:TpuAccelerator",
            "Google's TPUs",
            priority=50,
            **both,  # type: ignore[arg-type]  # values of two types
        ),
        Component(
            "accelerator",
            "xla",
            "stratagem_xla.accelerator:XlaAccelerator",
            "whatever PJRT_DEVICE names: TPUs, or the CPU compiled by XLA",
            # Compiling for the CPU is for trying things out: no one gets it without asking.
            priority=-10,
            conformance="stratagem_xla.conformance:ACCELERATOR",
            **both,  # type: ignore[arg-type]  # values of two types
        ),
    ]
