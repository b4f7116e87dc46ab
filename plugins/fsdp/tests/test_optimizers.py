"""Each of torch's optimizers, and some users' own, gives a plain loop's numbers under fsdp, or is refused."""

from __future__ import annotations

from all_optimizers import KINDS, compare
from stratagem_testing import StrategySubject

NOT_HERE = ["Adam capturable", "SparseAdam"]


def test_two_ranks() -> None:
    subject = StrategySubject("fsdp", options={"timeout_s": 60}, world_size=2)
    refusals = compare(subject, NOT_HERE)
    refused = refusals["SparseAdam"]
    assert "installed strategies that can: " in refused
    assert "ddp" in refused.rpartition(": ")[2].split(", ")
    assert "fsdp" not in refused.rpartition(": ")[2].split(", ")
    assert "capturable=True" in refusals["Adam capturable"]
    assert "sparse gradients" in refusals["SparseAdam"]


def test_without_shards_whole_tensors_are_stepped() -> None:
    kinds = ["Adafactor foreach=True", "Muon", "OwnGlobalNorm", "OwnRowNorm"]
    compare(StrategySubject("fsdp", options={"sharding_strategy": "NO_SHARD"}, world_size=2), [], kinds)
    compare(
        StrategySubject("fsdp", world_size=1), [], [kind for kind in KINDS if kind in (*kinds, "OwnSign")]
    )
