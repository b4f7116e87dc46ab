"""What `stratagem conformance ddp`, its presets and the tests try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stratagem.testing import StrategySubject
from stratagem.testing.subject import TOLERANCES

SUBJECT = StrategySubject(
    "ddp",
    options={"timeout_s": 60},
    # DistributedDataParallel looks for unused parameters only when it is asked to, which costs time.
    options_for={"unused_parameters": {"find_unused_parameters": True}},
)

_MANUAL = {
    "manual_optimization": "a hook works on DDP's buckets, which manual optimization doesn't use: refused"
}
_NUMBERS = (
    "parity",
    "accumulation",
    "partial_window",
    "optimizers",
    "schedulers",
    "several_optimizers",
    "closure",
    "norm_clipping",
    "value_clipping",
    "unused_parameters",
    "tied_weights",
    "frozen_parameters",
    "buffers",
    "same_start",
    "nested_batches",
    "uneven_samples",
    "other_world_size",
)
"""Checks that expect the numbers of plain averages of gradients. What the presets compute instead is held
against the algorithms by hand in tests/test_presets.py."""


def _within(name: str, tolerance: float) -> StrategySubject:
    """A preset that rounds gradients: its numbers are those of ddp, less exactly."""
    tolerances = {precision: max(usual, tolerance) for precision, usual in TOLERANCES.items()}
    return replace(SUBJECT, strategy=name, tolerances=tolerances)


def _begun(name: str, waivers: Mapping[str, str], **settings: Any) -> StrategySubject:
    """A preset that averages gradients plainly for a while: here it has begun before the runs end."""
    options = {**SUBJECT.options, "ddp_comm_state": settings}
    scaled = {"precisions": "16-mixed is refused: a gradient that overflows would break it"}
    return replace(SUBJECT, strategy=name, options=options, waivers={**_MANUAL, **scaled, **waivers})


_LOW_RANK = dict.fromkeys(_NUMBERS, "gradients are products of thin matrices, other numbers by design") | {
    "unused_parameters": "find_unused_parameters is refused: with PowerSGD it aborts the process, not yet understood"
}
_LOCAL = {
    f"{name}-{size}": "replicas step by themselves between averages, other numbers by design"
    for name in _NUMBERS
    for size in (2, 4)
} | {"closure": "an optimizer that needs a closure is refused: replicas would evaluate unequally often"}

SUBJECTS = {
    "ddp": SUBJECT,
    "ddp_fp16": _within("ddp_fp16", 2e-3),
    "ddp_bf16": _within("ddp_bf16", 2e-2),
    "ddp_powersgd": _begun("ddp_powersgd", _LOW_RANK, start_powerSGD_iter=2),
    "ddp_post_local_sgd": _begun("ddp_post_local_sgd", _LOCAL, start_localSGD_iter=2),
    "ddp_hierarchical_sgd": _begun("ddp_hierarchical_sgd", _LOCAL, start_localSGD_iter=2),
}
"""By name; the other presets differ from ddp in nothing that a check could tell."""
