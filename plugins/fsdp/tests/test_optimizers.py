"""Each of torch's optimizers, and some users' own, gives a plain loop's numbers under fsdp, or is refused."""

from __future__ import annotations

from all_optimizers import KINDS, compare
from stratagem_testing import StrategySubject

WHOLE = ["Adafactor foreach=False", "Adafactor foreach=True", "LBFGS", "Muon", "OwnGlobalNorm", "OwnRowNorm"]
NOT_HERE = ["Adam capturable", "SparseAdam"]


def test_two_ranks() -> None:
    subject = StrategySubject("fsdp", options={"timeout_s": 60}, world_size=2)
    refusals = compare(subject, [*WHOLE, *NOT_HERE])
    assert refusals["Muon"].startswith(
        "strategy 'fsdp' can't do this: Muon on shards, for it needs whole tensors: given rows in a trial"
    )
    assert "installed strategies that can: " in refusals["Muon"]
    assert "ddp" in refusals["Muon"].rpartition(": ")[2].split(", ")
    assert "fsdp" not in refusals["Muon"].rpartition(": ")[2].split(", ")
    assert "capturable=True" in refusals["Adam capturable"]
    assert "sparse gradients" in refusals["SparseAdam"]


def test_without_shards_whole_tensors_are_stepped() -> None:
    kinds = [kind for kind in WHOLE if kind != "LBFGS"]
    compare(StrategySubject("fsdp", options={"sharding_strategy": "NO_SHARD"}, world_size=2), [], kinds)
    compare(
        StrategySubject("fsdp", world_size=1), [], [kind for kind in KINDS if kind in (*kinds, "OwnSign")]
    )
