"""What `stratagem conformance ddp_sharded` and the tests try."""

from __future__ import annotations

from stratagem_testing import StrategySubject

SUBJECT = StrategySubject(
    "ddp_sharded",
    options={"timeout_s": 60},
    # DistributedDataParallel looks for unused parameters only when it is asked to, which costs time.
    options_for={
        **dict.fromkeys(("unused_parameters", "used_on_some_ranks"), {"find_unused_parameters": True})
    },
)
