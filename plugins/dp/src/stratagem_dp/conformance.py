"""What `stratagem conformance ddp2` and the tests try."""

from __future__ import annotations

from stratagem.testing import StrategySubject

SUBJECT = StrategySubject(
    "ddp2",
    options={"timeout_s": 60},
    # DistributedDataParallel looks for unused parameters only when it is asked to, which costs time.
    options_for={"unused_parameters": {"find_unused_parameters": True}},
)
