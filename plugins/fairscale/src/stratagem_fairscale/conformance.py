"""Subjects of `stratagem conformance` for fairscale_sharded and fairscale_pipe, and of the tests."""

from __future__ import annotations

from dataclasses import replace

from stratagem_testing import COMPARED_WITH_ITSELF, StrategySubject

SHARDED = StrategySubject("fairscale_sharded", options={"timeout_s": 60})
ONE_BY_ONE = replace(SHARDED, options={"timeout_s": 60, "reduce_buffer_size": 0})
"""Sends each gradient separately."""

# Batch norms are refused with several chunks: each would use the statistics of one chunk.
_WHOLE = {"chunks": 1}
PIPE = StrategySubject(
    "fairscale_pipe",
    options_for={
        **dict.fromkeys(("buffers", "same_start", *COMPARED_WITH_ITSELF), _WHOLE),
        "target_network": {"sequential_module": "net.online"},
    },
)
