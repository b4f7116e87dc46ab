"""bagua trains as the papers' algorithms written by hand on plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stratagem_bagua import BaguaStrategy
from stratagem_bagua.decentralized import peer_of
from stratagem_sharding.mean_exchange import decoded, encoded, padded
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem

STEPS = 13


def launched(function: Callable[..., Any], devices: int, *args: Any, **options: Any) -> Any:
    """Return what rank 0 returns of `function(runtime, *args)`."""
    strategy = BaguaStrategy(start_method="fork", timeout_s=200, **options)
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=devices)
    return runtime.launch(function, *args, quiet=True)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Another one for each rank and step."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return [
        (torch.randn(4, 12, generator=generator), torch.randint(3, (4,), generator=generator))
        for _ in range(STEPS)
    ]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def fill(model: nn.Module, values: Tensor) -> None:
    nn.utils.vector_to_parameters(values.clone(), model.parameters())  # which become views of it


def mean(values: Tensor) -> Tensor:
    ranks = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, values)
    return torch.stack(ranks).mean(0)


def by_stratagem(runtime: Any) -> Tensor:
    plain = net()
    model, optimizer = runtime.setup(plain, optimizer_of(plain))
    for x, y in batches():
        runtime.backward(F.cross_entropy(model(x), y), model)
        optimizer.step()
        optimizer.zero_grad()
    return flat(plain)


def plain_steps(model: nn.Module) -> Iterator[int]:
    """Yield before each optimizer step, when gradients are there, and at the end."""
    optimizer = optimizer_of(model)
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        yield step
        optimizer.step()
    yield STEPS


def allreduce(factor: int = 1) -> Tensor:
    model = net()
    for step in plain_steps(model):
        for parameter in model.parameters() if step < STEPS else ():
            assert parameter.grad is not None
            parameter.grad = factor * mean(parameter.grad)
    return flat(model)


def summed() -> Tensor:
    return allreduce(dist.get_world_size())


def averaging(interval: int = 1) -> Tensor:
    model = net()
    for step in plain_steps(model):
        if step % interval == 0 and step < STEPS:
            fill(model, mean(flat(model)))
    return flat(model)


def every_third() -> Tensor:
    return averaging(3)


def pairs() -> Tensor:
    model, size = net(), dist.get_world_size()
    for step in plain_steps(model):
        if step == STEPS:
            break
        ranks = [torch.empty_like(flat(model)) for _ in range(size)]
        dist.all_gather(ranks, flat(model))
        fill(model, (flat(model) + ranks[peer_of(dist.get_rank(), size, step)]) / 2)
    return flat(model)


def ring() -> Tensor:
    """DCD-PSGD, with the values that each rank has sent, for all ranks."""
    model, rank, size = net(), dist.get_rank(), dist.get_world_size()
    sent = [flat(model) for _ in range(size)]
    optimizer = optimizer_of(model)
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        average = (sent[rank] + sent[rank - 1] + sent[(rank + 1) % size]) / 3
        wanted = average + (flat(model) - sent[rank])
        message = encoded(padded(wanted - sent[rank], 1).view(1, -1), "int8")
        messages = [torch.empty_like(message) for _ in range(size)]
        dist.all_gather(messages, message)
        sent = [
            values + decoded(each, "int8").view(-1)[: len(values)] for values, each in zip(sent, messages)
        ]
        fill(model, sent[rank])
    return flat(model)


def compared(runtime: Any, by_hand: Callable[[], Tensor]) -> tuple[float, float]:
    """How far we are from the algorithm by hand, and that from training alone."""
    hand, alone = by_hand(), net()
    for _ in plain_steps(alone):
        pass
    ours = by_stratagem(runtime)
    ranks = runtime.collectives.gather_objects(
        (float((ours - hand).abs().max()), float((flat(alone) - hand).abs().max()))
    )
    return max(difference for difference, _ in ranks), min(effect for _, effect in ranks)


CASES: dict[str, tuple[int, Callable[[], Tensor], float, dict[str, Any]]] = {
    "gradient_allreduce": (2, allreduce, 1e-6, {}),
    "sums": (2, summed, 1e-6, {"average": False}),
    "async, warming up": (2, allreduce, 1e-6, {"algorithm": "async", "warmup_steps": STEPS}),
    # 8 bits, twice a step.
    "bytegrad": (3, allreduce, 3e-2, {"algorithm": "bytegrad"}),
    "decentralized": (3, averaging, 1e-6, {"algorithm": "decentralized"}),
    "interval": (2, every_third, 1e-6, {"algorithm": "decentralized", "communication_interval": 3}),
    "shift_one": (4, pairs, 1e-6, {"algorithm": "decentralized", "peer_selection_mode": "shift_one"}),
    # A rounding that falls on the other side is a step of 8 bits.
    "low_precision_decentralized": (3, ring, 1e-3, {"algorithm": "low_precision_decentralized"}),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_algorithm_by_hand(case: str) -> None:
    devices, by_hand, tolerance, options = CASES[case]
    difference, effect = launched(compared, devices, by_hand, **options)
    assert difference <= tolerance
    assert effect > 5e-2, "the algorithm changes nothing, so that nothing was tried"


@pytest.mark.parametrize("size", [2, 4, 6])
def test_in_half_as_many_rounds_as_ranks_each_meets_all_of_the_other_half(size: int) -> None:
    for round_ in range(size):
        peers = [peer_of(rank, size, round_) for rank in range(size)]
        assert [peers[peer] for peer in peers] == list(range(size))
    for rank in range(size // 2):
        met = {peer_of(rank, size, round_) for round_ in range(size // 2)}
        assert met == set(range(size // 2, size))
