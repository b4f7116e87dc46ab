"""What `stratagem conformance half-gradients` and the tests try."""

from __future__ import annotations

from stratagem_testing import StrategySubject

ROUNDING = 5e-3  # 16 bits, over 20 steps

SUBJECT = StrategySubject(
    "half-gradients",
    options={"timeout_s": 60},
    tolerances={"32-true": ROUNDING, "64-true": ROUNDING, "16-mixed": 2 * ROUNDING},
    feeds_errors_back=True,
    waivers={
        "line_search": "a search along a line magnifies what 16 bits round off: other steps by design",
    },
)
