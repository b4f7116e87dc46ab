"""The subject of `stratagem conformance composition` and of the tests."""

from __future__ import annotations

from stratagem_testing import StrategySubject

SUBJECT = StrategySubject(
    "composition",
    options={"timeout_s": 60, "axes": "shard=auto"},
    options_at={4: {"axes": "replicate=2+shard=2"}},
)
