"""qadam trains as 1-bit Adam written by hand, with 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stratagem_bagua import BaguaStrategy, QAdamOptimizer
from stratagem_sharding.mean_exchange import decoded, encoded, padded
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem

STEPS, WARMUP, LR, DECAY = 16, 6, 1e-2, 0.1
BETAS = BETA1, BETA2 = 0.9, 0.99


def launched(function: Callable[..., Any], devices: int, *args: Any, precision: str = "32-true") -> Any:
    strategy = BaguaStrategy("qadam", start_method="fork", timeout_s=200)
    runtime = stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=devices, precision=precision)
    return runtime.launch(function, *args, quiet=True)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))


def qadam(model: nn.Module, warmup_steps: int = WARMUP) -> QAdamOptimizer:
    return QAdamOptimizer(model.parameters(), LR, warmup_steps, BETAS, weight_decay=DECAY)


def batches(rank: int, steps: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    """Another one for each rank and step."""
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        yield (
            torch.randn(4, 12, generator=generator),
            torch.randint(3, (4,), generator=generator),
        )


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def gathered(values: Tensor) -> Tensor:
    ranks = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, values)
    return torch.stack(ranks)


def by_hand(compensated: bool = True) -> Tensor:
    """Algorithm 1 of the paper in float64, with messages of float32, which every rank gathers whole."""
    model, rank, size = net().double(), dist.get_rank(), dist.get_world_size()
    parameters = flat(model)
    momentum, variance = torch.zeros_like(parameters), torch.zeros_like(parameters)
    lost: Any = 0.0
    lost_of_mean: Any = 0.0
    for step, (x, y) in enumerate(batches(rank), 1):
        model.zero_grad()
        F.cross_entropy(model(x.double()), y).backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        if step <= WARMUP:
            gradient = gathered(gradient).mean(0) + DECAY * parameters
            momentum = BETA1 * momentum + (1 - BETA1) * gradient
            variance = BETA2 * variance + (1 - BETA2) * gradient**2
        else:
            own = BETA1 * momentum + (1 - BETA1) * (gradient + DECAY * parameters)
            rows = padded(own.float(), size).view(size, -1) + lost
            sent = encoded(rows, "int8")
            lost = (rows - decoded(sent, "int8")) * compensated
            received = gathered(sent).unbind(1)
            mean = (
                torch.cat([decoded(each, "int8").mean(0, keepdim=True) for each in received]) + lost_of_mean
            )
            sent_mean = decoded(encoded(mean, "int8"), "int8")
            lost_of_mean = (mean - sent_mean) * compensated
            momentum = sent_mean.view(-1)[: len(own)].double()
        root = (variance / (1 - BETA2 ** min(step, WARMUP))).sqrt() + 1e-8
        if step > WARMUP:
            root = root.maximum(momentum.abs() * (1 - BETA2) ** 0.5 / (1 - BETA1))
        parameters = parameters - LR / (1 - BETA1**step) * momentum / root
        nn.utils.vector_to_parameters(parameters.clone(), model.parameters())
    return parameters


def compared(runtime: Any) -> list[float]:
    plain = net().double()
    model, optimizer = runtime.setup(plain, qadam(plain))
    for x, y in batches(runtime.rank):
        runtime.backward(F.cross_entropy(model(x.double()), y), model)
        optimizer.step()
        optimizer.zero_grad()
    ours = flat(plain)
    return [float((ours - other).abs().max()) for other in (by_hand(), by_hand(False), gathered(ours)[0])]


@pytest.mark.parametrize("devices", [2, 3])
def test_equals_the_algorithm_by_hand(devices: int) -> None:
    # In float64, where no number is so near to the middle of two codes of 8 bits that it becomes the other one.
    apart, without_residuals, from_rank_0 = launched(compared, devices, precision="64-true")
    assert apart <= 1e-12
    assert without_residuals > 1e-5
    assert from_rank_0 == 0


def test_is_adam_through_the_warm_up_and_keeps_the_variance_after_it() -> None:
    ours, adams = net(), net()
    optimizers = qadam(ours), torch.optim.Adam(adams.parameters(), LR, BETAS, weight_decay=DECAY)
    for step, (x, y) in enumerate(batches(0), 1):
        for model, optimizer in zip((ours, adams), optimizers):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if step == WARMUP:
            torch.testing.assert_close(flat(ours), flat(adams), rtol=0, atol=1e-6)
            variances = [state["exp_avg_sq"].clone() for state in optimizers[0].state.values()]
    for state, variance in zip(optimizers[0].state.values(), variances):
        assert torch.equal(state["exp_avg_sq"], variance)
    assert float((flat(ours) - flat(adams)).abs().max()) > 1e-4


def test_a_weight_that_was_not_used_in_the_warm_up_moves_no_further_than_adam_by_a_first_gradient() -> None:
    weights = nn.Parameter(torch.zeros(3))
    optimizer = QAdamOptimizer([weights], 0.1, 5)
    for step in range(12):
        before = weights.detach().clone()
        weights.grad = torch.tensor([1.0, 0.0, 1e-4]) if step < 5 else torch.ones(3)
        optimizer.step()
        moved = (weights.detach() - before).abs()
        if step >= 5:
            bound = 0.1 * 0.1 / 0.001**0.5 / (1 - 0.9 ** (step + 1))
            torch.testing.assert_close(moved[1:], torch.full((2,), bound))
            assert moved[0] < bound / 2  # whose variance is known moves as before


def test_goes_on_from_what_an_adam_has_saved() -> None:
    model, adams = net(), net()
    optimizer, adam = qadam(model), torch.optim.Adam(adams.parameters(), LR)
    x, y = next(batches(0))
    F.cross_entropy(adams(x), y).backward()
    adam.step()
    optimizer.load_state_dict(adam.state_dict())
    assert optimizer.param_groups[0]["warmup_steps"] == WARMUP
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert {int(state["step"]) for state in optimizer.state.values()} == {2}


def refused(runtime: Any) -> None:
    model = net()
    runtime.setup(model, torch.optim.AdamW(model.parameters()))


def test_another_optimizer_is_refused() -> None:
    strategy = BaguaStrategy("qadam", start_method="fork")
    with pytest.raises(
        stratagem.StratagemError, match=r"QAdamOptimizer alone, and the optimizer is AdamW: write"
    ):
        stratagem.Runtime(strategy=strategy, accelerator="cpu", devices=1).launch(refused, quiet=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"warmup_steps": 0}, "warmup_steps=0, which must be at least 1 optimizer step"),
        ({"lr": -1.0}, "lr=-1.0, which must be 0 or more"),
        ({"betas": (0.9, 1.0)}, "must be two numbers from 0 to less than 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(stratagem.ConfigError, match=words):
        QAdamOptimizer(net().parameters(), **settings)


def in_two_parts(runtime: Any, folder: str, first: int) -> tuple[Tensor, int]:
    """Train `first` steps and save, or load and go on; return the parameters and how many residuals were kept."""
    model = net()
    wrapped, optimizer = runtime.setup(model, qadam(model))
    seen = list(batches(runtime.rank))
    if not first:
        runtime.load(folder)
    for x, y in seen[:first] if first else seen[10:]:
        runtime.backward(F.cross_entropy(wrapped(x), y), wrapped)
        optimizer.step()
        optimizer.zero_grad()
    if first == 10:
        runtime.save(folder)
    kept = sum("residuals" in name for name in wrapped.prepared.optimizer_tensors())
    return flat(model), kept


def test_residuals_and_warm_up_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    whole, kept = launched(in_two_parts, 2, folder, STEPS)
    assert kept == 2  # of one bucket, the rank's own and the mean's
    launched(in_two_parts, 2, folder, 10)
    assert torch.equal(launched(in_two_parts, 2, folder, 0)[0], whole)
    # Without residuals, which were of 2 ranks.
    assert launched(in_two_parts, 3, folder, 0)[0].isfinite().all()
