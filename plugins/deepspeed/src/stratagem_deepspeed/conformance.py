"""Subjects of the conformance kit: one per ZeRO stage."""

from __future__ import annotations

from dataclasses import replace

from stratagem_testing import StrategySubject

SMALL: dict[str, object] = {
    "timeout_s": 120,
    # Small buffers: the kit's modules have about a hundred elements.
    "reduce_bucket_size": 100_000,
    "allgather_bucket_size": 100_000,
    # Shard every parameter: by default, the engine keeps small ones whole.
    "stage3_param_persistence_threshold": 0,
}

_CLIPS_LATER = {"returned_norm": "the engine clips within its step, and knows the norm only then"}

_GATHERED_ALONE = (
    "parameters outside of their layer's forward are refused: "
    "use deepspeed.zero.GatheredParameters between steps"
)

_NO_OVERFLOW: dict[str, object] = {"initial_scale_power": 8}
"""The engine skips steps whose gradients overflow in float16, as the first ones do at its default scale of 2**16."""

SUBJECT = StrategySubject(
    "deepspeed", options=SMALL, options_for={"precisions": _NO_OVERFLOW}, waivers=_CLIPS_LATER
)

SUBJECTS = {
    "deepspeed": SUBJECT,
    **{name: replace(SUBJECT, strategy=name) for name in ("deepspeed_stage_1", "deepspeed_stage_2")},
    "deepspeed_stage_3": replace(
        SUBJECT,
        strategy="deepspeed_stage_3",
        options_for={"precisions": _NO_OVERFLOW, "used_on_some_ranks": {"timeout_s": 10}},
        waivers={
            **_CLIPS_LATER,
            "used_on_some_ranks": "the engine gathers what a rank uses: others wait until their timeout",
            **dict.fromkeys(("changes_in_place", "target_network"), _GATHERED_ALONE),
        },
    ),
}
"""Subjects by name, one per stage. tests/test_training.py and tests/test_nvme.py test offloading."""
