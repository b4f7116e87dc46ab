"""What `stratagem conformance` and the tests try. A process has one number of devices for all its life."""

from __future__ import annotations

from dataclasses import replace

from stratagem_testing import AcceleratorSubject, StrategySubject

# XLA orders sums in its own way, and computes tanh and exp by its own polynomials.
_CLOSE = {"32-true": 5e-6, "64-true": 1e-11}
# Compiling dozens of programs takes its time, above all on a busy machine: hence the deadline.

XLA = StrategySubject("xla", accelerator="xla", tolerances=_CLOSE, own_processes=True, timeout_s=300)
SINGLE = StrategySubject(
    "single_xla", accelerator="xla", tolerances=_CLOSE, own_processes=True, timeout_s=300
)
FSDP = StrategySubject("xla_fsdp", accelerator="xla", tolerances=_CLOSE, own_processes=True, timeout_s=300)
FSDP_PROCESS = replace(
    FSDP,
    options={"spmd": False},
    waivers={
        **FSDP.waivers,
        "parameter_hooks": "hooks on what has been accumulated would see shards of it: refused",
    },
)
"""What a process per device does, in the one that PJRT's CPU has."""
ACCELERATOR = AcceleratorSubject("xla")
