"""Collectives among the processes of a group, on real ones; test_arguments.py has the calls that are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stratagem_ddp import DDPStrategy

import stratagem
from stratagem.collectives.group import GroupCollectives
from stratagem.errors import CollectiveError

CPU = torch.device("cpu")


def on_ranks(world_size: int, function: Any) -> Any:
    """Run `function(runtime)` on forked ranks; returns rank 0's value."""
    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=120))
    return stratagem.Runtime(strategy, accelerator="cpu", devices=world_size).launch(function, quiet=True)


def collect(runtime: Any) -> list[Any]:
    c, rank = runtime.collectives, runtime.rank
    ones = torch.full((2, 2), float(rank + 1))
    whole = torch.tensor([-5 * (rank + 1)])
    leaf = torch.full((2,), float(rank + 1), requires_grad=True)
    gathered = c.all_gather(leaf, sync_grads=True)
    # Each rank weighs the parts by its own factor; a part's gradient is the sum over ranks.
    (gathered * (rank + 1)).sum().backward()
    assert leaf.grad is not None
    c.barrier("everybody")
    odd = c.all_reduce(torch.tensor([2 * rank + 1, -2 * rank - 2], dtype=torch.int8))
    turning = c.all_reduce(torch.tensor([1j * (rank + 1)]))
    mixed = c.all_gather(torch.tensor([rank], dtype=torch.float64).expand(3))
    return c.gather_objects(
        {
            "reduced": {
                op: c.all_reduce(ones, op)[0, 0].item() for op in ("mean", "sum", "min", "max", "product")
            },
            "whole": c.all_reduce(whole).item(),
            "rounded": (odd.tolist(), odd.dtype),
            "complex": turning.tolist(),
            "untouched": ones[0, 0].item(),
            "gathered": c.all_gather(ones)[:, 0, 0].tolist(),
            "shapes": (tuple(mixed.shape), mixed.dtype),
            "detached": c.all_gather(leaf).requires_grad or c.all_reduce(leaf).requires_grad,
            "grad": leaf.grad.tolist(),
            "tensor": c.broadcast(ones, src=1)[0, 0].item(),
            "object": c.broadcast({"rank": rank}, src=2),
            "place": (c.rank, c.local_rank, c.node_rank, c.world_size),
        }
    )


def test_collectives_over_three_processes() -> None:
    everyone = on_ranks(3, collect)
    assert len(everyone) == 3
    for rank, seen in enumerate(everyone):
        assert seen["reduced"] == {"mean": 2, "sum": 6, "min": 1, "max": 3, "product": 6}
        assert (seen["whole"], seen["untouched"]) == (-10, rank + 1)
        assert seen["rounded"] == ([3, -4], torch.int8)
        assert seen["complex"] == [2j]
        assert seen["gathered"] == [1, 2, 3]
        assert seen["shapes"] == ((3, 3), torch.float64)
        assert not seen["detached"]
        assert seen["grad"] == [6, 6]
        assert (seen["tensor"], seen["object"]) == (2, {"rank": 2})
        assert seen["place"] == (rank, rank, 0, 3)


def split(runtime: Any) -> list[Any]:
    """Ranks 1 and 2 of three, as a group of their own."""
    group = dist.new_group([1, 2])
    if runtime.rank == 0:
        return runtime.collectives.gather_objects(None)
    pair = GroupCollectives(group, CPU, local_rank=runtime.rank, node_rank=7)
    return runtime.collectives.gather_objects(
        {
            "place": (pair.rank, pair.world_size, pair.local_rank, pair.node_rank, pair.device),
            "group": pair.process_group is group,
            "sum": pair.all_reduce(torch.tensor([runtime.rank]), "sum").item(),
            # Ranks are counted within the group, for tensors and for objects.
            "tensor": pair.broadcast(torch.tensor([runtime.rank]), src=1).item(),
            "object": pair.broadcast(runtime.rank, src=1),
            "gathered": pair.gather_objects(runtime.rank),
            "arrived": pair.all_arrive("both", 20.0),
            "is alone": pair.rank == 0 and not pair.all_arrive("only the first", 0.05),
        }
    )


def test_ranks_of_a_smaller_group_are_those_within_it() -> None:
    nothing, *pairs = on_ranks(3, split)
    assert nothing is None
    for rank, seen in enumerate(pairs):
        assert seen.pop("place") == (rank, 2, rank + 1, 7, CPU)
        assert seen.pop("is alone") is (rank == 0)
        assert seen == {
            "arrived": True,
            "group": True,
            "sum": 3,
            "tensor": 2,
            "object": 2,
            "gathered": [1, 2],
        }


@pytest.fixture
def alone():
    """A group of one process."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # exported, but not in __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield GroupCollectives(dist.group.WORLD, CPU)
    finally:
        dist.destroy_process_group()


def test_a_group_of_one_answers_with_copies(alone: GroupCollectives) -> None:
    tensor = torch.ones(2, requires_grad=True)
    for made in (alone.all_reduce(tensor), alone.broadcast(tensor), alone.all_gather(tensor)[0]):
        assert not made.requires_grad
        made.zero_()
    assert tensor.sum() == 2
    assert alone.all_gather(tensor, sync_grads=True).requires_grad
    assert alone.all_arrive("here", 0.0) is True
    assert (alone.local_rank, alone.node_rank) == (0, 0)


def test_an_error_of_torch_names_the_rank_and_the_call(alone: GroupCollectives) -> None:
    class Refused:
        def __reduce__(self) -> Any:
            raise RuntimeError("can't be sent")

    for call, name in (
        (lambda: alone.gather_objects(Refused()), "gather_objects"),
        (lambda: alone.broadcast(Refused()), "broadcast from rank 0"),
    ):
        with pytest.raises(CollectiveError, match=f"^rank 0 of 1 failed in {name}: can't be sent$") as raised:
            call()
        assert isinstance(raised.value.__cause__, RuntimeError)


def differ(runtime: Any) -> list[str]:
    said = []
    for odd, size in ((1, 3), (2, 3), (1, 1)):
        with pytest.raises(CollectiveError) as raised:
            runtime.collectives.all_reduce(torch.ones(size if runtime.rank == odd else 2), "sum")
        said.append(str(raised.value).partition(";")[0])
    return runtime.collectives.gather_objects(said)


def test_every_rank_names_the_rank_that_calls_something_else() -> None:
    begins = "ranks don't call the same collective: rank 0 calls all_reduce 'sum' of float32 (2,), and "
    assert (
        on_ranks(3, differ)
        == [
            [
                f"{begins}rank {odd} calls all_reduce 'sum' of float32 ({size},)"
                for odd, size in ((1, 3), (2, 3), (1, 1))
            ]
        ]
        * 3
    )


def leave(runtime: Any) -> Any:
    if runtime.rank == 1:
        dist.destroy_process_group()  # as a rank that ends does
        return None
    pair, said = GroupCollectives(dist.group.WORLD, CPU), []
    for name in ("lunch", None):
        with pytest.raises(CollectiveError) as raised:
            pair.barrier(name)
        said.append(str(raised.value).partition(": ")[0])
    runtime.collectives.close(failed=True)
    return said


def test_a_barrier_is_reported_by_its_name() -> None:
    assert on_ranks(2, leave) == ["rank 0 of 2 failed in barrier 'lunch'", "rank 0 of 2 failed in barrier"]
