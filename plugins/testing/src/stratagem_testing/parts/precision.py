"""What every precision is to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stratagem_testing.checks import NotApplicable, check, expect
from stratagem_testing.parts.subject import PrecisionSubject
from stratagem_testing.recipe import Recipe

if TYPE_CHECKING:
    from stratagem import Precision


@check(world_sizes=(1,), in_worker=True)
def check_named(subject: PrecisionSubject) -> None:
    """It has the name that it was asked by, and makes up its mind about dtypes when it is made."""
    precision: Precision = subject.make()
    expect(precision.name == subject.name, f"asked for {subject.name!r}, it calls itself {precision.name!r}")
    for name in ("param_dtype", "compute_dtype", "reduce_dtype"):
        dtype = getattr(precision, name)
        expect(dtype is None or isinstance(dtype, torch.dtype), f"{name} is {dtype!r}")
    expect(
        precision.converts_input == (precision.param_dtype is not None) or precision.converts_input,
        "parameters have another dtype, and inputs aren't converted",
    )


@check(world_sizes=(1,), in_worker=True)
def check_converts_modules(subject: PrecisionSubject) -> None:
    """Floating-point parameters and buffers get its dtype, and integers stay integers."""
    precision: Precision = subject.make()
    module = nn.BatchNorm1d(3)
    converted = precision.convert_module(module)
    expect(converted is module, "convert_module returns another module")
    dtype = precision.param_dtype or torch.float32
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        wanted = dtype if name != "num_batches_tracked" else torch.int64
        expect(value.dtype == wanted, f"{name} has {value.dtype}, and not {wanted}")


@check(world_sizes=(1,), in_worker=True)
def check_converts_batches(subject: PrecisionSubject) -> None:
    """Floating-point tensors of a batch get its dtype; integers and other values stay as they are."""
    precision: Precision = subject.make()
    batch = {"x": [torch.ones(2), (torch.ones(2, dtype=torch.int64), "text")], "n": 3}
    converted = precision.convert_input(batch)
    dtype = precision.param_dtype or torch.float32
    kinds = (converted["x"][0].dtype, converted["x"][1][0].dtype, converted["x"][1][1], converted["n"])
    expect(kinds == (dtype, torch.int64, "text", 3), f"a batch is converted into {kinds}")


@check(world_sizes=(1,), in_worker=True)
def check_contexts_end(subject: PrecisionSubject) -> None:
    """Its contexts are fresh each time, and leave nothing changed behind."""
    precision: Precision = subject.make()
    before = torch.get_default_dtype()
    with precision.init_context():
        made = torch.empty(1).dtype
    expect(made == (precision.param_dtype or before), f"a module would be made in {made}")
    for _ in range(2):
        autocast = precision.autocast()
        if autocast is not None:
            with autocast:
                product = torch.ones(2, 2, device=subject.device) @ torch.ones(2, 2, device=subject.device)
            wanted = precision.compute_dtype or precision.param_dtype
            expect(product.dtype == wanted, f"under autocast a product has {product.dtype}, and not {wanted}")
    expect(torch.get_default_dtype() == before, "it leaves another default dtype behind")
    expect(not torch.is_autocast_enabled(torch.device(subject.device).type), "it leaves autocast on")


@check(world_sizes=(1,), in_worker=True)
def check_true_gradients(subject: PrecisionSubject) -> None:
    """After unscale, once or twice, gradients have their true size."""
    precision, parameter, optimizer = _one(subject)
    precision.scale((parameter.float() * 3).sum()).backward()
    for _ in range(2):
        precision.unscale(optimizer)
        assert parameter.grad is not None
        expect(
            bool((parameter.grad == 3).all()),
            f"a gradient of 3 is {parameter.grad[0].item():g} after unscale",
        )
    expect(precision.step(optimizer), "a step with sound gradients is skipped")
    expect(
        bool((parameter == 1 - 0.5 * 3).all()), f"a step from 1 by 0.5 × 3 ends at {parameter[0].item():g}"
    )


@check(world_sizes=(1,), in_worker=True)
def check_skips_overflows(subject: PrecisionSubject) -> None:
    """Where it scales the loss, a step whose gradients overflowed is skipped, and the next is made."""
    precision, parameter, optimizer = _one(subject)
    if float(precision.scale(torch.ones((), device=subject.device))) == 1.0:
        raise NotApplicable("it doesn't scale the loss")
    for factor, applied in ((float("inf"), False), (1.0, True)):
        optimizer.zero_grad()
        precision.scale((parameter.float() * factor).sum()).backward()
        before = parameter.detach().clone()
        told = precision.step(optimizer)
        expect(told == applied, f"step says {told} after gradients of {factor}")
        expect(
            bool((parameter == before).all()) != applied, f"gradients of {factor} left {parameter.tolist()}"
        )


def _one(subject: PrecisionSubject) -> tuple[Any, Tensor, torch.optim.Optimizer]:
    precision: Precision = subject.make()
    module = nn.Linear(1, 2, bias=False, device=subject.device)
    nn.init.ones_(module.weight)
    parameter = precision.convert_module(module).weight
    assert isinstance(parameter, Tensor)
    return precision, parameter, torch.optim.SGD([parameter], lr=0.5)


@check(world_sizes=(1,), in_worker=True)
def check_trains(subject: PrecisionSubject) -> None:
    """20 steps come as near to those in 32 bits as its tolerance says, and the loss falls."""
    precise = _losses(Recipe(), None, subject.device)
    ours = _losses(Recipe(), subject.make(), subject.device)
    apart = max(abs(a - b) for a, b in zip(ours, precise))
    expect(apart <= subject.tolerance, f"losses are up to {apart:.2g} away from those in 32 bits")
    expect(sum(ours[-5:]) < sum(ours[:5]), "the loss doesn't fall")


def _losses(recipe: Recipe, precision: Any, device: str) -> list[float]:
    from stratagem import Precision

    precision = precision or Precision()
    net = precision.convert_module(recipe.net().to(device))
    (optimizer,) = recipe.optimizers(net)
    data: Any = recipe.dataset()
    losses = []
    for step in range(20):
        start = 16 * (step % 10)
        batch = precision.convert_input(
            [torch.stack(part).to(device) for part in zip(*(data[i] for i in range(start, start + 16)))]
        )
        autocast = precision.autocast()
        if autocast is None:
            loss = recipe.loss(net, batch)
        else:
            with autocast:
                loss = recipe.loss(net, batch)
        assert loss is not None
        optimizer.zero_grad()
        precision.scale(loss).backward()
        precision.unscale(optimizer)
        precision.step(optimizer)
        losses.append(float(loss.detach()))
    return losses


@check(world_sizes=(1,), in_worker=True)
def check_state(subject: PrecisionSubject) -> None:
    """Its state is JSON, and another object of its kind goes on from it."""
    precision, parameter, optimizer = _one(subject)
    precision.scale((parameter.float() * float("inf")).sum()).backward()
    precision.step(optimizer)
    state = precision.state_dict()
    told = json.loads(json.dumps(state))
    other: Precision = subject.make()
    other.load_state_dict(told)
    expect(other.state_dict() == state, f"state {state} comes back as {other.state_dict()}")
