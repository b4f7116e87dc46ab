"""Extensions see what engines communicate by themselves, in bytes; the rest of torch doesn't notice."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from stratagem_ddp import DDPStrategy
from stratagem_fsdp import FSDPStrategy
from stratagem_sharding.traffic import watch_traffic
from torch import nn

from stratagem import Runtime

WIDTH, LAYERS = 64, 4
PARAMETERS_BYTES = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def bytes_of(run) -> dict[str, int]:
    """What `run` communicates, by collective."""
    sums: dict[str, int] = {}
    stop = watch_traffic(lambda name, size: sums.update({name: sums.get(name, 0) + size}))
    try:
        run()
    finally:
        stop()
    return sums


def steps(runtime) -> list[dict[str, int]]:
    """What each of three steps communicates; the first builds what the others use."""
    module = layers()
    module, optimizer = runtime.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        found.append(bytes_of(lambda: runtime.backward(module(torch.ones(2, WIDTH)).sum())))
        optimizer.step()
    return found


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (DDPStrategy, {"all_reduce": PARAMETERS_BYTES}),
        (
            partial(FSDPStrategy, auto_wrap_policy={nn.Linear}),
            {"all_gather": 2 * PARAMETERS_BYTES, "reduce_scatter": PARAMETERS_BYTES},
        ),
    ],
    ids=["ddp", "fsdp"],
)
def test_bytes_of_engines_are_what_theory_says(strategy, expected) -> None:
    made = strategy(start_method="fork", timeout=timedelta(seconds=60))
    runtime = Runtime(strategy=made, accelerator="cpu", devices=2, check_replicas_every=0)
    found = runtime.launch(steps, quiet=True)
    assert found[-1] == expected


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_every_collective_has_its_name_and_the_size_of_its_message(group) -> None:
    tensor, out = torch.zeros(8), [torch.zeros(8)]
    calls = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "reduce": lambda: dist.reduce(tensor, 0),
        "all_gather": lambda: dist.all_gather(out, tensor),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.zeros(8), [tensor]),
        "gather": lambda: dist.gather(tensor, out),
        "scatter": lambda: dist.scatter(tensor, out),
        "all_to_all": lambda: dist.all_to_all_single(torch.zeros(8), tensor),
    }
    assert {name: bytes_of(call) for name, call in calls.items()} == {name: {name: 32} for name in calls}
    assert bytes_of(dist.barrier) == {}


def test_watching_changes_no_result_and_leaves_nothing_behind(group) -> None:
    tensor = torch.arange(4.0)
    seen: list[str] = []
    first = watch_traffic(lambda name, size: seen.append(f"first {name} {size}"))
    second = watch_traffic(lambda name, size: seen.append(f"second {name} {size}"))
    dist.all_reduce(tensor)
    first()
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    second()
    second()
    dist.all_reduce(tensor)
    assert tensor.tolist() == [0, 1, 2, 3]
    assert seen == ["first all_reduce 16", "second all_reduce 16", "second all_reduce 16"]
