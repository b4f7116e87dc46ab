"""What `stratagem conformance pipeline` and the tests try."""

from __future__ import annotations

from stratagem.testing import StrategySubject


def one_copy(world_size: int) -> int:
    """All ranks share one copy of the model, and read the same batches."""
    return 1


# What a forward counts in buffers is counted once per micro-batch.
_WHOLE = {"micro_batches": 1, "schedule": "gpipe"}

SUBJECT = StrategySubject(
    "pipeline",
    options={"timeout_s": 60},
    options_for={"buffers": _WHOLE, "same_start": _WHOLE},
    data_ranks=one_copy,
)
