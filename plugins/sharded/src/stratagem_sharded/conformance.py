"""What `stratagem conformance ddp_sharded`, that of ddp_fully_sharded, and the tests try."""

from __future__ import annotations

from stratagem_testing import StrategySubject

# DistributedDataParallel looks for unused parameters only when it is asked to, which costs time.
_LOOKS = {"find_unused_parameters": True}

SUBJECT = StrategySubject(
    "ddp_sharded",
    options={"timeout_s": 60},
    options_for=dict.fromkeys(("unused_parameters", "used_on_some_ranks"), _LOOKS),
)

FULLY = StrategySubject(
    "ddp_fully_sharded",
    # By default each micro-batch is reduced, so that a rank keeps gradients of its shards alone.
    options_for={"no_sync": {"reduce_each_micro_batch": False}},
)
"""What `stratagem conformance ddp_fully_sharded` tries."""
