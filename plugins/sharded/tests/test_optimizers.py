"""Each of torch's optimizers gives a plain loop's numbers where ranks share out states, or is refused."""

from __future__ import annotations

from all_optimizers import compare
from stratagem_testing import StrategySubject

NOT_HERE = ["Adam capturable", "SparseAdam"]
OPTIONS = {"timeout_s": 60}


def test_ddp_fully_sharded() -> None:
    compare(StrategySubject("ddp_fully_sharded", options=OPTIONS, world_size=2), NOT_HERE)


def test_ddp_sharded() -> None:
    # A rank steps whole parameters, but not all of them.
    refused = ["LBFGS", "OwnGlobalNorm", "Adam capturable"]
    refusals = compare(StrategySubject("ddp_sharded", options=OPTIONS, world_size=2), refused)
    assert "it needs all parameters at once" in refusals["OwnGlobalNorm"]
