"""What `stratagem conformance ddp`, its presets and the tests try."""

from __future__ import annotations

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


def _within(name: str, tolerance: float) -> StrategySubject:
    """A preset that rounds gradients: its numbers are those of ddp, less exactly."""
    tolerances = {precision: max(usual, tolerance) for precision, usual in TOLERANCES.items()}
    return replace(SUBJECT, strategy=name, tolerances=tolerances)


def _begun(name: str, **settings: Any) -> StrategySubject:
    """A preset that averages gradients plainly for a while: here it has begun before the runs end."""
    return replace(SUBJECT, strategy=name, options={**SUBJECT.options, "ddp_comm_state": settings})


SUBJECTS = {
    "ddp": SUBJECT,
    "ddp_fp16": _within("ddp_fp16", 2e-3),
    "ddp_bf16": _within("ddp_bf16", 2e-2),
    "ddp_powersgd": _begun("ddp_powersgd", start_powerSGD_iter=2),
    "ddp_post_local_sgd": _begun("ddp_post_local_sgd", start_localSGD_iter=2),
    "ddp_hierarchical_sgd": _begun("ddp_hierarchical_sgd", start_localSGD_iter=2),
}
"""By name; the other presets differ from ddp in nothing that a check could tell."""
