"""What `stratagem conformance deepspeed` and the tests try."""

from __future__ import annotations

from stratagem.testing import StrategySubject

SMALL: dict[str, object] = {"timeout_s": 60, "reduce_bucket_size": 100_000, "allgather_bucket_size": 100_000}

SUBJECT = StrategySubject("deepspeed", options=SMALL)
