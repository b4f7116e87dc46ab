"""What `stratagem conformance` and the tests try. A process has one number of devices for all its life."""

from __future__ import annotations

from dataclasses import replace

from stratagem.testing import AcceleratorSubject, StrategySubject

# XLA orders sums in its own way, and computes tanh and exp by its own polynomials.
_CLOSE = {"32-true": 5e-6, "64-true": 1e-11}
# Compiling dozens of programs takes its time, above all on a busy machine: hence the deadline.

XLA = StrategySubject("xla", accelerator="xla", tolerances=_CLOSE, own_processes=True, timeout_s=300)
SINGLE = StrategySubject(
    "single_xla", accelerator="xla", tolerances=_CLOSE, own_processes=True, timeout_s=300
)
FSDP = StrategySubject("xla_fsdp", accelerator="xla", tolerances=_CLOSE, own_processes=True, timeout_s=300)
_NOT_CARRIED = "torch_xla's wrapper computes with copies of its own: docs/strategies/xla.md, Limits"
FSDP_PROCESS = replace(
    FSDP,
    options={"spmd": False},
    waivers={
        **FSDP.waivers,
        **dict.fromkeys(
            (
                "frozen_for_one_loss",
                "frozen_within_a_step",
                "changes_in_place",
                "target_network",
                "parameter_hooks",
                "penalties",
                "stages_in_a_row",
            ),
            _NOT_CARRIED,
        ),
        "whole_optimizers": "only Adafactor is refused, by name: docs/strategies/xla.md, Limits",
    },
)
"""What a process per device does, in the one that PJRT's CPU has."""
ACCELERATOR = AcceleratorSubject("xla")
