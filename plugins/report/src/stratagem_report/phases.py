"""The phases that a rank's time is divided into; each nanosecond belongs to one."""

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
"""Names, by number, as in a record. The first seven divide a training step."""

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
"""Phases of a step in which a rank does its own work; in the others it waits for someone or writes."""

COMPUTE: tuple[int, ...] = (FORWARD, BACKWARD, FORWARD_BACKWARD, OPTIMIZER)
"""Phases that train the model."""
