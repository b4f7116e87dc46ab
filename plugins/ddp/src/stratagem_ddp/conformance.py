"""Subjects of `stratagem conformance` for ddp and its presets, and of the tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stratagem_testing import COMPARED_WITH_ITSELF, DRIFTING_REPLICAS, StrategySubject
from stratagem_testing.subject import TOLERANCES

# DistributedDataParallel looks for unused parameters only on request, since it costs time.
_LOOKS = {"find_unused_parameters": True}

SUBJECT = StrategySubject(
    "ddp",
    options={"timeout_s": 60},
    options_for=dict.fromkeys(("unused_parameters", "used_on_some_ranks"), _LOOKS),
)

_MANUAL = {
    "manual_optimization": "the hook works on DDP's buckets, which manual optimization doesn't use: refused"
}
_SEARCH = {
    "line_search": "a search along a line magnifies what compressed gradients lose: other steps by design"
}
_SCALED = {"precisions": "16-mixed is refused: a gradient that overflows would break it"}


def _within(name: str, tolerance: float, **changes: Any) -> StrategySubject:
    """Return the subject of a preset that matches ddp within a larger tolerance."""
    tolerances = {precision: max(usual, tolerance) for precision, usual in TOLERANCES.items()}
    return replace(SUBJECT, strategy=name, tolerances=tolerances, **changes)


# These settings make the algorithms lossless, so that results equal ordinary gradient averages. Lossy settings are
# compared with the algorithm by hand in tests/test_presets.py. Checks of resumption use the preset's own settings,
# so that all of its memory is tested.
_WHOLE_RANK = {
    "matrix_approximation_rank": 64,
    "min_compression_rate": 0,
    "start_powerSGD_iter": 2,
    "orthogonalization_epsilon": 1e-8,
}
_LOW_RANK = {"ddp_comm_state": {"start_powerSGD_iter": 2}}
_AT_ONCE = {"start_localSGD_iter": 2}
_LOCAL = {
    **_MANUAL,
    **_SCALED,
    **dict.fromkeys(
        ("closure", "line_search"),
        "an optimizer that needs a closure is refused: replicas would evaluate unequally often",
    ),
}
_NOT_LINEAR = {
    **DRIFTING_REPLICAS,
    **{f"optimizer_hooks-{size}": DRIFTING_REPLICAS[f"optimizers-{size}"] for size in (2, 4)},
    "own_backwards-2": "in the warm-up, a last window within no_sync leaves gradients each replica's own",
}
_SEVERAL_STEPS_APART = ("mid_epoch", *COMPARED_WITH_ITSELF)

SUBJECTS = {
    "ddp": SUBJECT,
    # A gradient is rounded twice in each of up to 20 steps.
    "ddp_fp16": _within("ddp_fp16", 2e-3, waivers=_SEARCH),
    "ddp_bf16": _within("ddp_bf16", 1e-2, waivers=_SEARCH),
    "ddp_powersgd": _within(
        "ddp_powersgd",
        1e-4,
        options={**SUBJECT.options, "ddp_comm_state": _WHOLE_RANK},
        options_for={
            **SUBJECT.options_for,
            **dict.fromkeys((*_SEVERAL_STEPS_APART, "error_feedback"), _LOW_RANK),
        },
        feeds_errors_back=True,
        waivers={**_MANUAL, **_SCALED, **_SEARCH},
    ),
    "ddp_post_local_sgd": replace(
        SUBJECT,
        strategy="ddp_post_local_sgd",
        options={**SUBJECT.options, "ddp_comm_state": _AT_ONCE, "model_averaging_period": 1},
        options_for={
            **SUBJECT.options_for,
            **{name: {"model_averaging_period": 3} for name in _SEVERAL_STEPS_APART},
        },
        waivers={**_LOCAL, **_NOT_LINEAR},
    ),
    "ddp_hierarchical_sgd": replace(
        SUBJECT,
        strategy="ddp_hierarchical_sgd",
        options={**SUBJECT.options, "ddp_comm_state": _AT_ONCE},
        options_at={size: {"period_group_size": {1: size}} for size in (1, 2, 4)},
        options_for={
            **SUBJECT.options_for,
            **{name: {"period_group_size": "auto"} for name in _SEVERAL_STEPS_APART},
        },
        waivers={**_LOCAL, **_NOT_LINEAR},
    ),
}
"""Subjects by name. The other presets differ from ddp in ways that no check can tell."""
