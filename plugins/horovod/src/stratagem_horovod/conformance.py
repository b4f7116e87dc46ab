"""What `stratagem conformance horovod` and the tests try."""

from __future__ import annotations

from dataclasses import replace

from stratagem_testing import StrategySubject
from stratagem_testing.subject import TOLERANCES

# What is scaled isn't trained as in one process; tests/engine/test_training.py holds it against one with that rate.
SUBJECT = StrategySubject("horovod", options={"timeout_s": 60, "scale_lr": False})

COMPRESSED = replace(
    SUBJECT,
    options={**SUBJECT.options, "compression": "fp16"},
    # A gradient is rounded twice in each of up to 20 steps.
    tolerances={precision: max(usual, 2e-3) for precision, usual in TOLERANCES.items()},
    waivers={
        "line_search": "a search along a line magnifies what compressed gradients lose: other steps by design"
    },
)
"""With gradients sent as float16."""
