"""Wrong calls of collectives: refused in one sentence, alike in one process and on every rank of several."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stratagem_ddp import DDPStrategy

import stratagem
from stratagem.errors import CollectiveError, StratagemError, UsageError

ONES = torch.ones(2)
WRONG = {
    "avg": (lambda c: c.all_reduce(ONES, "avg"), r"op 'avg'; allowed are 'mean', .*: give 'mean'"),
    "torch's": (lambda c: c.all_reduce(ONES, dist.ReduceOp.SUM), "SUM.*: give 'sum'"),
    "none": (lambda c: c.all_reduce(ONES, None), "got the op None; allowed are 'mean'"),
    "a float": (lambda c: c.all_reduce(1.0), r"all_reduce got a float; allowed are tensors"),
    "a list": (lambda c: c.all_gather([1]), r"all_gather got a list; allowed are tensors"),
    "bool": (lambda c: c.all_reduce(ONES > 0), r"'mean' got a bool tensor: convert it"),
    "complex": (lambda c: c.all_reduce(ONES + 1j, "max"), "only 'mean' and 'sum'"),
    "source": (lambda c: c.broadcast(ONES, 9), "src=9, and there (is only|are) rank"),
    "before": (lambda c: c.broadcast({}, -1), "src=-1, and there (is only|are) rank"),
}
UNEQUAL = {
    "shapes": (
        lambda c: c.all_reduce(torch.ones(1 + c.rank)),
        r"float32 \(1,\), and rank 1 .*float32 \(2,\)",
    ),
    "more elements": (
        lambda c: c.all_gather(torch.ones(1 + 999 * c.rank)),
        r"\(1,\), and rank 1 .*\(1000,\)",
    ),
    "dtypes": (
        lambda c: c.all_reduce(ONES.double() if c.rank else ONES),
        "of float32 .* rank 1 calls .* of float64",
    ),
    "ops": (lambda c: c.all_reduce(ONES, "max" if c.rank else "min"), "all_reduce 'min' .* all_reduce 'max'"),
    "sources": (lambda c: c.broadcast(c.rank, c.rank), "from rank 0, and rank 1 calls broadcast from rank 1"),
    "kinds": (
        lambda c: c.broadcast(ONES if c.rank else "ones"),
        r"from rank 0, and .* from rank 0 of float32",
    ),
    "calls": (
        lambda c: c.gather_objects(1) if c.rank else c.all_reduce(ONES),
        "calls all_reduce .* rank 1 calls gather_objects",
    ),
    "gradients": (
        lambda c: c.all_gather(torch.ones(2, requires_grad=bool(c.rank)), sync_grads=True),
        "all_gather of .* all_gather with gradients",
    ),
}


def error_of(call: Any, collectives: Any) -> str:
    try:
        call(collectives)
    except StratagemError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_in_one_process(name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises(UsageError, match=words):
        call(stratagem.LocalCollectives(torch.device("cpu")))


def test_what_one_process_takes_has_no_gradient_either() -> None:
    alone = stratagem.LocalCollectives(torch.device("cpu"))
    assert not alone.all_reduce(torch.ones(2, requires_grad=True)).requires_grad
    assert not alone.broadcast(torch.ones(2, requires_grad=True)).requires_grad


def try_all(runtime: Any) -> Any:
    c = runtime.collectives
    seen = {name: error_of(call, c) for name, (call, _) in (WRONG | UNEQUAL).items()}
    # The group goes on working.
    large = c.all_reduce(torch.tensor([200, 100], dtype=torch.uint8))
    return c.gather_objects((seen, large.tolist(), c.all_reduce(ONES > 0, "max").tolist()))


def test_every_rank_reports_what_is_wrong() -> None:
    strategy = DDPStrategy(start_method="fork", timeout=timedelta(seconds=60))
    runtime = stratagem.Runtime(strategy, accelerator="cpu", devices=2)
    import re

    for seen, mean, any_is in runtime.launch(try_all, quiet=True):
        for name, (_, words) in WRONG.items():
            assert re.search(f"UsageError: .*{words}", seen[name]), (name, seen[name])
        for name, (_, words) in UNEQUAL.items():
            assert re.search(f"CollectiveError: .*{words}", seen[name]), (name, seen[name])
        assert (mean, any_is) == ([200, 100], [True, True])


def lay_apart(runtime: Any) -> Any:
    c = runtime.collectives
    table = torch.arange(6.0).view(2, 3)
    other = table.t().contiguous().t() if c.rank else table  # the same values, column by column
    weight = torch.ones(2, 2, requires_grad=True)
    leaf = torch.ones(2, requires_grad=True)
    # An addition hands one gradient to both of its operands; what was made later comes first.
    earlier = weight * 1
    ((c.all_gather(leaf, sync_grads=True) + earlier) * (c.rank + 1)).sum().backward()
    assert weight.grad is not None
    assert leaf.grad is not None
    return c.gather_objects(
        (c.all_reduce(other).tolist(), c.broadcast(other).tolist(), weight.grad.tolist(), leaf.grad.tolist())
    )


def test_strides_of_ranks_may_differ_and_gradients_of_others_are_left_alone() -> None:
    runtime = stratagem.Runtime(DDPStrategy(start_method="fork"), accelerator="cpu", devices=2)
    table = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    for rank, seen in enumerate(runtime.launch(lay_apart, quiet=True)):
        assert seen == (table, table, [[rank + 1.0] * 2] * 2, [3.0, 3.0])


def fail(runtime: Any) -> None:
    runtime.all_reduce(torch.ones(1 + runtime.rank))


def test_the_launching_process_gets_it_too() -> None:
    runtime = stratagem.Runtime(DDPStrategy(start_method="fork"), accelerator="cpu", devices=2)
    with pytest.raises(stratagem.StratagemError, match=r"rank 0 calls all_reduce 'mean' of float32 \(1,\)"):
        runtime.launch(fail, quiet=True)
    assert issubclass(CollectiveError, StratagemError)
