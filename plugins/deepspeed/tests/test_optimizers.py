"""Optimizers under DeepSpeed's stages, which flatten parameters, give a plain loop's numbers or are refused."""

from __future__ import annotations

import pytest
from all_optimizers import compare
from stratagem_testing import StrategySubject

ELEMENTWISE = [
    "Rprop foreach=False",
    "ASGD foreach=True",
    "AdamW foreach=False",
    "SGD momentum, nesterov",
    "OwnSign",
]
WHOLE = ["Adafactor foreach=False", "Muon", "OwnGlobalNorm", "OwnRowNorm"]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_flattened(stage: int) -> None:
    subject = StrategySubject(
        "deepspeed", options={"stage": stage, "timeout_s": 60}, world_size=2, own_processes=True
    )
    refusals = compare(subject, WHOLE, [*ELEMENTWISE, *WHOLE])
    assert "Adafactor on shards, for it needs whole tensors: given flattened shards" in refusals[WHOLE[0]]
