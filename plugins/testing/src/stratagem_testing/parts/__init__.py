"""What accelerators, precisions, checkpointers, environments and launchers are to do."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem_testing.checks import Check, checks_in
from stratagem_testing.parts import accelerator, checkpoint, environment, launcher, precision

PART_CHECKS: Mapping[str, tuple[Check, ...]] = {
    "accelerator": checks_in(accelerator),
    "precision": checks_in(precision),
    "checkpoint": checks_in(checkpoint),
    "environment": checks_in(environment),
    "launcher": checks_in(launcher),
}
"""Kind → its checks."""
