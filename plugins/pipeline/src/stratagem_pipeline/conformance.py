"""The subject of `stratagem conformance pipeline` and of the tests."""

from __future__ import annotations

from stratagem_testing import COMPARED_WITH_ITSELF, StrategySubject


def one_copy(world_size: int) -> int:
    """Return 1: all ranks share one copy of the model, and read the same batches."""
    return 1


# With several micro-batches, forwards that change buffers are refused.
_WHOLE = {"micro_batches": 1, "schedule": "gpipe"}

SUBJECT = StrategySubject(
    "pipeline",
    options={"timeout_s": 60},
    options_for={
        # The user's step, and post-accumulate hooks, run once per micro-batch.
        **dict.fromkeys(("buffers", "same_start", "frozen_within_a_step", "parameter_hooks"), _WHOLE),
        **dict.fromkeys(COMPARED_WITH_ITSELF, _WHOLE),
    },
    data_ranks=one_copy,
    waivers={
        "missing_losses": "stages run in every step: a step that doesn't call them is refused",
        "frozen_for_one_loss": "stages run once per step: a step that calls them twice is refused",
        "changes_in_place": "stages compute while other parts run the step: changes within it are refused",
        "target_network": "stages run once per step: a step that calls two networks is refused",
    },
)
