"""MixedPrecision precision: autocast, and loss scaling with skipped steps."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from stratagem.errors import UsageError
from stratagem.precision.mixed import MixedPrecision, ScaledPrecision

CPU = torch.device("cpu")


def make(lr: float = 0.1, **kwargs: Any) -> tuple[nn.Parameter, torch.optim.SGD]:
    weight = nn.Parameter(torch.ones(3))
    return weight, torch.optim.SGD([weight], lr=lr, **kwargs)


def backward(precision: ScaledPrecision, weight: nn.Parameter, factor: float = 1.0) -> None:
    precision.scale((weight * factor).sum()).backward()


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [(MixedPrecision("bf16-mixed", CPU), torch.bfloat16), (ScaledPrecision("16-mixed", CPU), torch.float16)],
)
def test_forward_runs_in_16_bits_and_parameters_stay(precision: MixedPrecision, dtype: torch.dtype) -> None:
    net, batch = nn.Linear(4, 2), torch.ones(3, 4)
    assert precision.convert_module(net) is net
    assert precision.converts_input is False
    first, second = precision.autocast(), precision.autocast()
    assert first is not None
    assert second is not None
    with first, second:
        assert net(batch).dtype is dtype
    assert net(batch).dtype is torch.float32
    assert net.weight.dtype is torch.float32
    assert precision.compute_dtype is dtype


def test_bfloat16_scales_nothing() -> None:
    precision, (weight, optimizer) = MixedPrecision("bf16-mixed", CPU), make()
    loss = weight.sum()
    assert precision.scale(loss) is loss
    loss.backward()
    precision.unscale(optimizer)
    assert precision.step(optimizer) is True
    assert precision.state_dict() == {}


def test_a_good_step_is_the_plain_step() -> None:
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make()
    backward(precision, weight)
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((3,), 65536.0))
    assert precision.step(optimizer) is True
    assert torch.allclose(weight, torch.full((3,), 0.9))


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make(momentum=0.9)
    backward(precision, weight, float("inf"))
    assert precision.step(optimizer) is False
    assert torch.equal(weight, torch.ones(3))
    assert optimizer.state[weight] == {}
    assert precision.state_dict()["scale"] == 32768.0
    optimizer.zero_grad()
    backward(precision, weight)
    assert precision.step(optimizer) is True
    assert precision.state_dict()["scale"] == 32768.0


def test_a_skip_is_seen_though_the_scale_stays() -> None:
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make()
    precision.load_state_dict(precision.state_dict() | {"backoff_factor": 1.0})
    backward(precision, weight, float("nan"))
    assert precision.step(optimizer) is False
    assert precision.state_dict()["scale"] == 65536.0


def test_a_fused_optimizer_is_seen_to_skip_too() -> None:
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make(fused=True)
    backward(precision, weight, float("inf"))
    assert precision.step(optimizer) is False
    assert torch.equal(weight, torch.ones(3))
    optimizer.zero_grad()
    backward(precision, weight)
    assert precision.step(optimizer) is True
    assert torch.allclose(weight, torch.full((3,), 0.9))


def test_unscaling_happens_once_per_step() -> None:
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make()
    for _ in range(3):
        optimizer.zero_grad()
        backward(precision, weight)
        precision.unscale(optimizer)
        precision.unscale(optimizer)
        assert weight.grad is not None
        assert torch.equal(weight.grad, torch.ones(3))
        assert precision.step(optimizer) is True
    assert torch.allclose(weight, torch.full((3,), 0.7))


def test_micro_batches_accumulate_at_one_scale() -> None:
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make()
    for _ in range(4):
        backward(precision, weight, 0.25)
    assert precision.step(optimizer) is True
    assert torch.allclose(weight, torch.full((3,), 0.9))


def test_the_scale_grows_after_good_steps() -> None:
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make()
    precision.load_state_dict(precision.state_dict() | {"growth_interval": 2})
    for _ in range(2):
        backward(precision, weight)
        precision.step(optimizer)
    assert precision.state_dict()["scale"] == 131072.0


def test_two_optimizers_of_one_loss_share_a_scale() -> None:
    precision = ScaledPrecision("16-mixed", CPU)
    (first, one), (second, two) = make(), make()
    precision.scale((first * float("inf")).sum() + second.sum()).backward()
    assert precision.step(one) is False
    assert precision.step(two) is True, "its gradients are fine, and must be divided by the old scale"
    assert torch.equal(first, torch.ones(3))
    assert torch.allclose(second, torch.full((3,), 0.9))
    assert precision.state_dict()["scale"] == 32768.0


def test_two_optimizers_in_turns() -> None:
    precision = ScaledPrecision("16-mixed", CPU)
    (first, one), (second, two) = make(), make()
    for _ in range(2):
        for weight, optimizer in ((first, one), (second, two)):
            optimizer.zero_grad()
            backward(precision, weight)
            assert precision.step(optimizer) is True
    assert torch.allclose(torch.cat([first, second]), torch.full((6,), 0.8))


def test_an_optimizer_without_gradients_steps_as_in_plain_torch() -> None:
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make()
    other, used = make()
    assert precision.step(optimizer) is True
    backward(precision, other)
    for _ in range(2):
        assert precision.step(optimizer) is True
    assert precision.step(used) is True
    backward(precision, weight)
    assert precision.step(optimizer) is True
    assert torch.allclose(weight, torch.full((3,), 0.9))


def test_the_state_is_json_and_goes_on() -> None:
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make()
    backward(precision, weight, float("inf"))
    precision.step(optimizer)
    state = json.loads(json.dumps(precision.state_dict()))
    resumed = ScaledPrecision("16-mixed", CPU)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    optimizer.zero_grad()
    backward(resumed, weight)
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((3,), 32768.0))


def test_a_run_without_scaling_can_be_gone_on_with() -> None:
    precision = ScaledPrecision("16-mixed", CPU)
    precision.load_state_dict({})
    assert precision.state_dict()["scale"] == 65536.0


def test_a_closure_is_refused() -> None:
    precision, weight = ScaledPrecision("16-mixed", CPU), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.LBFGS([weight])
    with pytest.raises(UsageError, match=r"LBFGS with a closure.*use precision='bf16-mixed' or '32-true'"):
        precision.step(optimizer, lambda: weight.sum())


def test_gradients_of_a_loss_that_was_not_scaled_are_refused() -> None:
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make()
    backward(precision, weight)
    assert precision.step(optimizer)
    optimizer.zero_grad()
    assert precision.step(optimizer)  # without gradients there is nothing to refuse
    weight.sum().backward()
    with pytest.raises(UsageError, match=r"hasn't scaled: call runtime\.backward\(loss\)"):
        precision.step(optimizer)
    optimizer.zero_grad()
    backward(precision, weight)
    assert precision.step(optimizer)


def test_a_small_gradient_survives_16_bits() -> None:
    def first_gradient(precision: MixedPrecision) -> float:
        net = nn.Linear(2, 1, bias=False)
        context = precision.autocast()
        assert context is not None
        with context:
            loss = net(torch.full((1, 2), 1e-4)).float().sum() * 1e-4
        precision.scale(loss).backward()
        precision.unscale(torch.optim.SGD(net.parameters(), lr=1.0))
        assert net.weight.grad is not None
        return net.weight.grad[0, 0].item()

    class Unscaled(MixedPrecision):
        compute_dtype = torch.float16

    assert first_gradient(Unscaled("16-mixed", CPU)) == 0.0
    assert first_gradient(ScaledPrecision("16-mixed", CPU)) == pytest.approx(1e-8, rel=1e-2)


def test_a_loaded_scale_forgets_what_was_unscaled_before() -> None:
    """Loading between unscale and step: neither the scale nor its count goes on from gradients of before."""
    precision, (weight, optimizer) = ScaledPrecision("16-mixed", CPU), make()
    saved = precision.state_dict() | {"scale": 512.0, "_growth_tracker": 7}
    backward(precision, weight, float("inf"))
    precision.unscale(optimizer)
    precision.load_state_dict(saved)
    assert precision.state_dict() == saved
    optimizer.zero_grad()
    backward(precision, weight)
    assert torch.equal(weight.grad, torch.full((3,), 512.0))
    assert precision.step(optimizer) is True
    assert torch.allclose(weight, torch.full((3,), 0.9))
    assert precision.state_dict() == saved | {"_growth_tracker": 8}
