"""Checks for components other than strategies."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem_testing.checks import Check, checks_in
from stratagem_testing.parts import (
    accelerator,
    axis,
    checkpoint,
    environment,
    extension,
    launcher,
    logger,
    place,
    precision,
)

PART_CHECKS: Mapping[str, tuple[Check, ...]] = {
    "axis": checks_in(axis),
    "accelerator": checks_in(accelerator),
    "precision": checks_in(precision),
    "checkpoint": checks_in(checkpoint),
    "environment": checks_in(environment),
    "launcher": checks_in(launcher),
    "extension": checks_in(extension),
    "logger": checks_in(logger),
    "place": checks_in(place),
}
"""Kind of component → its checks."""
