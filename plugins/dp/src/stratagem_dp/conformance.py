"""What `stratagem conformance ddp2` and the tests try."""

from __future__ import annotations

from stratagem_testing import StrategySubject

# DistributedDataParallel looks for unused parameters only when it is asked to, which costs time.
_LOOKS = {"find_unused_parameters": True}

_COPIES = {
    f"frozen_for_one_loss-{size}": "copies on other devices can't follow a change within the step: refused"
    for size in (2, 4)
}

SUBJECT = StrategySubject(
    "ddp2",
    options={"timeout_s": 60},
    waivers=_COPIES,
    options_for=dict.fromkeys(("unused_parameters", "used_on_some_ranks"), _LOOKS),
)
DP = StrategySubject("dp", waivers=_COPIES)
"""What `stratagem conformance dp` and the tests try."""
