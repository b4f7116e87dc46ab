"""The phases of a rank's time. Each nanosecond belongs to exactly one phase."""

from __future__ import annotations

PHASES: tuple[str, ...] = (
    "data",
    "forward",
    "backward",
    "forward and backward",
    "communication",
    "optimizer",
    "other",
    "start",
    "validation",
    "checkpoint",
    "load",
    "end",
)
"""Names of the phases; a record has their indices. The first seven are parts of a training step."""

(
    DATA,
    FORWARD,
    BACKWARD,
    FORWARD_BACKWARD,
    COMMUNICATION,
    OPTIMIZER,
    OTHER,
    START,
    VALIDATION,
    CHECKPOINT,
    LOAD,
    END,
) = range(len(PHASES))

OWN: tuple[int, ...] = (DATA, FORWARD, BACKWARD, FORWARD_BACKWARD, OPTIMIZER, OTHER)
"""Phases of a step in which a rank works itself, rather than waiting for other ranks."""

COMPUTE: tuple[int, ...] = (FORWARD, BACKWARD, FORWARD_BACKWARD, OPTIMIZER)
"""Phases that train the model."""
