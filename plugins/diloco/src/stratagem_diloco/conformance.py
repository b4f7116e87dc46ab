"""What `stratagem conformance diloco`, its preset and the tests try."""

from __future__ import annotations

from dataclasses import replace

from stratagem_testing import COMPARED_WITH_ITSELF, DRIFTING_REPLICAS, StrategySubject

# Numbers equal to those of one process need replicas that are averaged after every step; what DiLoCo makes of
# other settings is compared with the algorithm by hand in tests/test_algorithm.py. Continuing is tried with all that
# it has to remember.
_AVERAGES = {"sync_every": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
_ROUNDS = {"sync_every": 3, "outer_lr": 0.7, "outer_momentum": 0.9}
_STREAMS = {**_ROUNDS, "sync_every": 4, "fragments": 2, "overlap_steps": 3, "outer_grad_dtype": "int8"}
_SEVERAL_STEPS_APART = ("mid_epoch", *COMPARED_WITH_ITSELF)

_NOT_LINEAR = DRIFTING_REPLICAS | dict.fromkeys(
    ("used_on_some_ranks-2", "used_on_some_ranks-4"),
    "a replica whose own batch doesn't reach a parameter leaves it, and its momentum, alone: by design",
)

SUBJECT = StrategySubject(
    "diloco",
    options={"timeout_s": 60, **_AVERAGES},
    options_for=dict.fromkeys(_SEVERAL_STEPS_APART, _ROUNDS),
    waivers=_NOT_LINEAR,
)

SUBJECTS = {
    "diloco": SUBJECT,
    "streaming_diloco": replace(
        SUBJECT,
        strategy="streaming_diloco",
        options={**SUBJECT.options, "fragments": 1, "overlap_steps": 0, "outer_grad_dtype": None},
        options_for=dict.fromkeys(_SEVERAL_STEPS_APART, _STREAMS),
    ),
}
