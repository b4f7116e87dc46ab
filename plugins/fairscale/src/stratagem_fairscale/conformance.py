"""What `stratagem conformance fairscale_sharded`, that of fairscale_pipe, and the tests try."""

from __future__ import annotations

from dataclasses import replace

from stratagem_testing import COMPARED_WITH_ITSELF, StrategySubject

SHARDED = StrategySubject("fairscale_sharded", options={"timeout_s": 60})
ONE_BY_ONE = replace(SHARDED, options={"timeout_s": 60, "reduce_buffer_size": 0})
"""Sends each gradient separately."""

# A batch norm has the statistics of a chunk where there are several: refused.
_WHOLE = {"chunks": 1}
PIPE = StrategySubject(
    "fairscale_pipe",
    options_for={
        **dict.fromkeys(("buffers", "same_start", *COMPARED_WITH_ITSELF), _WHOLE),
        "target_network": {"sequential_module": "net.online"},
    },
)
