"""diloco trains as the papers' algorithms written by hand on plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stratagem_diloco import DiLoCoStrategy
from stratagem_diloco.outer import fragments_of
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem

STEPS = 26


def launched(function: Callable[..., Any], devices: int, *args: Any, **options: Any) -> Any:
    """Return what rank 0 returns of `function(runtime, *args)`."""
    strategy = DiLoCoStrategy(start_method="fork", timeout_s=200, **options)
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=devices)
    return runtime.launch(function, *args, quiet=True)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    """Another one for each rank and step."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    return [
        (torch.randn(4, 12, generator=generator), torch.randint(3, (4,), generator=generator))
        for _ in range(STEPS)
    ]


def by_stratagem(runtime: Any) -> list[Tensor]:
    plain = net()
    model, optimizer = runtime.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    for x, y in batches():
        runtime.backward(F.cross_entropy(model(x), y), model)
        optimizer.step()
        optimizer.zero_grad()
    return list(plain.parameters())


def by_hand(
    sync_every: int, lr: float, momentum: float, nesterov: bool, fragments: int, overlap: int, mixing: float
) -> list[Tensor]:
    """Algorithm 2 of arXiv 2501.18512, which with one fragment and no overlap is algorithm 1 of 2311.08105."""
    plain = net()
    local = dict(plain.named_parameters())
    shared = {name: p.detach().clone().requires_grad_() for name, p in local.items()}
    parts = fragments_of(local, fragments)
    inner = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    outer = [
        torch.optim.SGD([shared[n] for n in part], lr=lr, momentum=momentum, nesterov=nesterov)
        for part in parts
    ]
    gradients: dict[int, list[Tensor]] = {}
    for step, (x, y) in enumerate(batches(), 1):
        inner.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        inner.step()
        with torch.no_grad():
            for p, part in enumerate(parts):
                offset = (p + 1) * sync_every // fragments
                if step >= offset and (step - offset) % sync_every == 0:
                    gradients[p] = [shared[name] - local[name] for name in part]
                    for gradient in gradients[p]:
                        dist.all_reduce(gradient)
                        gradient /= dist.get_world_size()
                if step >= offset + overlap and (step - offset - overlap) % sync_every == 0:
                    for name, gradient in zip(part, gradients[p]):
                        shared[name].grad = gradient
                    outer[p].step()
                    for name in part:
                        local[name].copy_(mixing * local[name] + (1 - mixing) * shared[name])
    return list(plain.parameters())


def apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(ours, theirs))


def compared(runtime: Any, *settings: Any) -> tuple[float, float]:
    """How far we are from the algorithm by hand, and that from averaging after every step."""
    hand, averaging = by_hand(*settings), by_hand(1, 1.0, 0.0, False, 1, 0, 0.0)
    ranks = runtime.collectives.gather_objects((apart(by_stratagem(runtime), hand), apart(averaging, hand)))
    return max(difference for difference, _ in ranks), min(effect for _, effect in ranks)


CASES: dict[str, tuple[int, tuple[Any, ...]]] = {
    "DiLoCo": (3, (5, 0.7, 0.9, True, 1, 0, 0.0)),
    "overlapped": (2, (6, 0.7, 0.9, True, 3, 1, 0.5)),
    "several in flight": (2, (6, 0.4, 0.9, True, 3, 5, 0.25)),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_algorithm_by_hand(case: str) -> None:
    devices, settings = CASES[case]
    sync_every, lr, momentum, nesterov, fragments, overlap, mixing = settings
    difference, effect = launched(
        compared,
        devices,
        *settings,
        sync_every=sync_every,
        outer_lr=lr,
        outer_momentum=momentum,
        outer_nesterov=nesterov,
        fragments=fragments,
        overlap_steps=overlap,
        mixing=mixing,
    )
    assert difference <= 1e-6
    assert effect > 1e-2, "the algorithm changes nothing, so that nothing was tried"


def test_every_step_with_outer_sgd_of_1_is_averaging() -> None:
    settings = (1, 1.0, 0.0, False, 1, 0, 0.0)
    difference, _ = launched(compared, 2, *settings, sync_every=1, outer_lr=1.0, outer_momentum=0.0)
    assert difference <= 1e-6


def from_hand(runtime: Any, *settings: Any) -> float:
    return compared(runtime, *settings)[0]


@pytest.mark.parametrize(("dtype", "bits"), [("fp16", 11), ("int8", 8)])
def test_smaller_outer_gradients_lead_nearly_to_the_same(dtype: str, bits: int) -> None:
    settings = CASES["overlapped"][1]
    difference = launched(
        from_hand, 2, *settings, sync_every=6, fragments=3, overlap_steps=1, outer_grad_dtype=dtype
    )
    assert 1e-7 < difference < 4 * 2.0**-bits


class FrozenLater(nn.Module):
    """Its first layer is frozen in mid-round."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.net(x)
        return scores


def first_layers(runtime: Any) -> list[Tensor]:
    plain = FrozenLater()
    model, optimizer = runtime.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    found = []
    for step, (x, y) in enumerate(batches(), 1):
        plain.net[0].requires_grad_(step <= 7)
        runtime.backward(F.cross_entropy(model(x), y), model)
        optimizer.step()
        optimizer.zero_grad()
        found.append(plain.net[0].weight.detach().clone())
    return [found[index] for index in (6, 9, 10, STEPS - 1)]


def test_what_is_frozen_in_mid_round_becomes_the_average_and_stays() -> None:
    before, still, averaged, last = launched(first_layers, 2, sync_every=5, overlap_steps=1)
    assert torch.equal(before, still)  # sent with step 10, arrives with step 11
    assert not torch.equal(still, averaged)
    assert torch.equal(averaged, last), "outer momentum moves a frozen parameter"
