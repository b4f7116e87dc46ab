"""The collectives of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stratagem.errors import CollectiveError, UsageError
from stratagem_testing.checks import check, expect
from stratagem_testing.subject import StrategySubject

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem import Collectives, Runtime


SOON_S = 30.0


@check
def check_ranks(subject: StrategySubject) -> None:
    """Every process has a different rank, and the same world size."""
    places = subject.run(_in_run, "place")
    count = subject.processes()
    expect(
        [place[:2] for place in places] == [(rank, count) for rank in range(count)],
        f"processes 0 to {count - 1} have (rank, world size) {[place[:2] for place in places]}",
    )
    expect([place[2] for place in places] == list(range(count)), "local ranks aren't 0, 1, 2, … on one node")


@check
def check_collectives(subject: StrategySubject) -> None:
    """all_reduce (every op), all_gather, broadcast, gather_objects and barrier return what they must."""
    subject.run(_in_run, "collectives")


@check
def check_all_gather_gradients(subject: StrategySubject) -> None:
    """Gradients flow through all_gather to the rank whose tensor it was, summed over the ranks."""
    subject.run(_in_run, "gradients")


def _in_run(subject: StrategySubject, what: str) -> Any:
    trials = {"place": _place, "collectives": _try_all, "gradients": _try_gradients}
    runtime = subject.runtime()
    return runtime.launch(_with_runtime, trials[what], subject.folder, quiet=True)


def _with_runtime(runtime: Runtime, trial: Any, folder: str) -> Any:
    if trial is _try_all:
        _try_barrier(runtime.collectives, folder)
    return trial(runtime)


def _place(runtime: Runtime) -> tuple[int, int, int]:
    return runtime.rank, runtime.world_size, runtime.local_rank


def _try_all(runtime: Runtime) -> None:
    collectives, rank, count = runtime.collectives, runtime.rank, runtime.world_size
    own = torch.tensor([[1.0 + rank, -2.0 * rank], [0.5, rank + 3.0]], device=runtime.device)
    everyone = torch.stack([own.new_tensor([[1.0 + r, -2.0 * r], [0.5, r + 3.0]]) for r in range(count)])
    expected = {
        "mean": everyone.mean(0),
        "sum": everyone.sum(0),
        "min": everyone.amin(0),
        "max": everyone.amax(0),
        "product": everyone.prod(0),
    }
    given = own.clone()
    for op, value in expected.items():
        _expect_equal(collectives.all_reduce(own, op), value, f"all_reduce {op!r}")  # type: ignore[arg-type]  # keys of the dict above, each a ReduceOp
    _expect_equal(own, given, "the tensor given to all_reduce")
    whole = collectives.all_reduce(torch.tensor([rank + 1, 7], device=runtime.device), "sum")
    _expect_equal(whole, torch.tensor([count * (count + 1) // 2, 7 * count]), "all_reduce 'sum' of integers")
    _expect_equal(collectives.all_gather(own), everyone, "all_gather")
    _expect_equal(collectives.all_gather(own[0, 0]), everyone[:, 0, 0], "all_gather of a scalar")
    for source in range(count):
        _expect_equal(collectives.broadcast(own, source), everyone[source], f"broadcast from {source}")
        received = collectives.broadcast({"from": rank} if rank == source else None, source)
        expect(received == {"from": source}, f"broadcast of an object from {source} gives {received}")
    gathered = collectives.gather_objects(("rank", rank))
    expect(gathered == [("rank", r) for r in range(count)], f"gather_objects gives {gathered}")
    collectives.barrier("conformance")
    _try_misuse(collectives)


def _try_barrier(collectives: Collectives, folder: str) -> None:
    """Rank 0 writes a file and enters the barrier last. A rank that leaves it without the file hasn't waited."""
    rank, last = collectives.rank, Path(folder, "the-last-comes")
    if rank:
        Path(folder, f"rank-{rank}-comes").touch()
    else:
        deadline = time.monotonic() + SOON_S
        others = [Path(folder, f"rank-{other}-comes") for other in range(1, collectives.world_size)]
        while not all(other.exists() for other in others) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.1)  # other ranks would have left a barrier that does nothing
        last.touch()
    collectives.barrier("conformance")
    expect(last.exists(), f"rank {rank} has left the barrier before rank 0 entered it")


def _try_misuse(collectives: Collectives) -> None:
    own = torch.ones(2, device=collectives.device)
    count = collectives.world_size
    for what, call in {
        "all_reduce 'avg'": lambda: collectives.all_reduce(own, "avg"),  # type: ignore[arg-type]  # wrong on purpose
        "all_reduce of a float": lambda: collectives.all_reduce(1.0),  # type: ignore[arg-type]  # wrong on purpose
        f"broadcast from {count}": lambda: collectives.broadcast(own, count),
    }.items():
        _expect_refused(what, call, UsageError)
    if count > 1:
        unequal = torch.ones(2 + collectives.rank, device=collectives.device)
        _expect_refused(
            "all_reduce of unequal shapes", lambda: collectives.all_reduce(unequal), CollectiveError
        )
        _expect_refused(
            "all_gather of unequal shapes", lambda: collectives.all_gather(unequal), CollectiveError
        )
        _expect_refused(
            "broadcast of unequal shapes", lambda: collectives.broadcast(unequal), CollectiveError
        )
        _expect_equal(collectives.all_reduce(own, "sum"), own * count, "all_reduce 'sum' after refusals")


def _expect_refused(what: str, call: Callable[[], Any], error: type[Exception]) -> None:
    try:
        call()
    except Exception as raised:
        expect(isinstance(raised, error), f"{what} raises {type(raised).__name__}, not {error.__name__}")
    else:
        expect(False, f"{what} is accepted without an error")


def _try_gradients(runtime: Runtime) -> None:
    count, rank = runtime.world_size, runtime.rank
    own = torch.tensor([1.0 + rank, 2.0], device=runtime.device, requires_grad=True)
    gathered = runtime.all_gather(own, sync_grads=True)
    expect(tuple(gathered.shape) == (count, 2), f"all_gather of shape (2,) has shape {tuple(gathered.shape)}")
    weights = torch.arange(1.0, count + 1, device=runtime.device).unsqueeze(1) * (rank + 1)
    torch.autograd.backward((gathered * weights).sum())
    expect(own.grad is not None, "no gradient flows through all_gather")
    assert own.grad is not None
    # Rank r's weight for the tensor of rank p is (p + 1)(r + 1).
    total = (rank + 1) * count * (count + 1) / 2
    _expect_equal(own.grad, torch.full((2,), float(total)), "the gradient through all_gather")
    apart = runtime.all_gather(own)
    expect(not apart.requires_grad, "all_gather without sync_grads keeps a graph")


def _expect_equal(ours: torch.Tensor, theirs: torch.Tensor, what: str) -> None:
    ours = ours.detach().cpu()
    theirs = theirs.detach().cpu()
    same = ours.shape == theirs.shape and ours.dtype == theirs.dtype and bool(torch.allclose(ours, theirs))
    expect(same, f"{what} is {ours.tolist()}, not {theirs.tolist()}")
