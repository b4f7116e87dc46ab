"""Lightning's names of precisions, and their meaning on a CPU."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from stratagem.errors import StratagemError
from stratagem.sdk.runs import assemble

if TYPE_CHECKING:
    from stratagem import RunConfig

PRECISIONS = {
    None: "32-true",
    64: "64-true",
    32: "32-true",
    16: "16-mixed",
    "64": "64-true",
    "32": "32-true",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
}
"""Lightning's short names."""


def on_cpu(config: RunConfig) -> RunConfig:
    """Return the configuration, with "bf16-mixed" instead of "16-mixed" on a CPU, as Lightning does it."""
    if config.precision != "16-mixed" or config.accelerator not in ("auto", "cpu"):
        return config
    other = replace(config, precision="bf16-mixed")
    try:
        is_cpu = config.accelerator == "cpu" or assemble(other).process_devices()[0].type == "cpu"
    except StratagemError:
        return config  # the run itself reports the error
    if is_cpu:
        warnings.warn("precision='16-mixed' on a CPU is as 'bf16-mixed'", UserWarning, stacklevel=3)
    return other if is_cpu else config
