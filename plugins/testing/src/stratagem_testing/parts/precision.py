"""Checks for every precision."""

from __future__ import annotations

import copy
import json
import os
import random
from contextlib import nullcontext
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
    """It has the requested name, and its dtypes are set when it is made."""
    precision: Precision = subject.make()
    expect(precision.name == subject.name, f"requested as {subject.name!r}, it is called {precision.name!r}")
    for name in ("param_dtype", "compute_dtype", "reduce_dtype"):
        dtype = getattr(precision, name)
        expect(dtype is None or isinstance(dtype, torch.dtype), f"{name} is {dtype!r}")
    expect(
        precision.converts_input == (precision.param_dtype is not None) or precision.converts_input,
        "parameters have another dtype, but inputs aren't converted",
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
        expect(value.dtype == wanted, f"{name} has {value.dtype}, not {wanted}")


@check(world_sizes=(1,), in_worker=True)
def check_returns_layers(subject: PrecisionSubject) -> None:
    """Converted layers keep their names, parameters and identity, and are restored afterwards."""
    precision: Precision = subject.make()
    net = subject.make_recipe().net().to(subject.device)
    modules, parameters = dict(net.named_modules()), dict(net.named_parameters())
    kinds, keys = {name: type(module) for name, module in modules.items()}, list(net.state_dict())
    attributes = {name: set(vars(module)) for name, module in modules.items()}
    undo = precision.convert_layers(net)
    expect(list(net.state_dict()) == keys, f"a state dict has {list(net.state_dict())}, but had {keys}")
    for name, module in net.named_modules():
        expect(module is modules.get(name), f"{name!r} is another module than the one in the user's code")
    for name, parameter in net.named_parameters():
        expect(parameter is parameters.get(name), f"{name!r} is another parameter")
    undo()
    for name, module in modules.items():
        expect(
            type(module) is kinds[name], f"{name!r} still has the class {type(module).__name__} after the run"
        )
        left = sorted(set(vars(module)) - attributes[name])
        expect(not left, f"{name!r} still has {left} after the run")


@check(world_sizes=(1,), in_worker=True)
def check_converts_batches(subject: PrecisionSubject) -> None:
    """Floating-point tensors of a batch get its dtype; integers and other values don't change."""
    precision: Precision = subject.make()
    batch = {"x": [torch.ones(2), (torch.ones(2, dtype=torch.int64), "text")], "n": 3}
    converted = precision.convert_input(batch)
    dtype = precision.param_dtype or torch.float32
    kinds = (converted["x"][0].dtype, converted["x"][1][0].dtype, converted["x"][1][1], converted["n"])
    expect(kinds == (dtype, torch.int64, "text", 3), f"a batch is converted into {kinds}")


@check(world_sizes=(1,), in_worker=True)
def check_contexts_end(subject: PrecisionSubject) -> None:
    """Its contexts are new objects each time, and restore torch's settings."""
    precision: Precision = subject.make()
    before = torch.get_default_dtype()
    with precision.init_context():
        made = torch.empty(1).dtype
    expect(made == (precision.param_dtype or before), f"a module would be made in {made}")
    first, second = precision.autocast(), precision.autocast()
    expect(
        first is None or first is not second,
        "autocast() returns the same object twice, but two forwards may be open at the same time",
    )
    for _ in range(2):
        autocast = precision.autocast()
        if autocast is not None:
            with autocast:
                product = torch.ones(2, 2, device=subject.device) @ torch.ones(2, 2, device=subject.device)
            wanted = precision.compute_dtype or precision.param_dtype
            expect(product.dtype == wanted, f"under autocast a product has {product.dtype}, not {wanted}")
    expect(torch.get_default_dtype() == before, "it leaves another default dtype")
    expect(not torch.is_autocast_enabled(torch.device(subject.device).type), "it leaves autocast on")


@check(world_sizes=(1,), in_worker=True)
def check_true_gradients(subject: PrecisionSubject) -> None:
    """After unscale, called once or twice, gradients have their true size."""
    precision, parameter, optimizer = _one(subject)
    precision.scale((parameter.float() * 3).sum()).backward()
    for _ in range(2):
        precision.unscale(optimizer)
        assert parameter.grad is not None
        expect(
            bool((parameter.grad == 3).all()),
            f"a gradient of 3 is {parameter.grad[0].item():g} after unscale",
        )
    expect(precision.step(optimizer), "a step with finite gradients is skipped")
    expect(
        bool((parameter == 1 - 0.5 * 3).all()), f"a step from 1 by 0.5 × 3 ends at {parameter[0].item():g}"
    )


@check(world_sizes=(1,), in_worker=True)
def check_skips_overflows(subject: PrecisionSubject) -> None:
    """If it scales losses, it skips a step whose gradients overflowed, and makes the next one."""
    precision, parameter, optimizer = _one(subject)
    if float(precision.scale(torch.ones((), device=subject.device))) == 1.0:
        raise NotApplicable("it doesn't scale the loss")
    for factor, applied in ((float("inf"), False), (1.0, True)):
        optimizer.zero_grad()
        precision.scale((parameter.float() * factor).sum()).backward()
        before = parameter.detach().clone()
        stepped = precision.step(optimizer)
        expect(stepped == applied, f"step returns {stepped} after gradients of {factor}")
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
    """20 steps differ from those in 32 bits by at most its tolerance, and the loss decreases."""
    precise = _losses(subject.make_recipe(), None, subject.device)
    ours = _losses(subject.make_recipe(), subject.make(), subject.device)
    apart = max(abs(a - b) for a, b in zip(ours, precise))
    expect(apart <= subject.tolerance, f"losses differ by up to {apart:.2g} from those in 32 bits")
    expect(sum(ours[-5:]) < sum(ours[:5]), "the loss doesn't decrease")


def _prepared(precision: Precision, net: nn.Module) -> nn.Module:
    """Return a network as a run passes it to its loop."""
    precision.convert_layers(net)
    return precision.convert_module(net)


def _losses(recipe: Recipe, precision: Any, device: str) -> list[float]:
    from stratagem import Precision

    precision = precision or Precision()
    net = _prepared(precision, recipe.net().to(device))
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
    """Its state is JSON, and another object of its class continues from it."""
    precision, parameter, optimizer = _one(subject)
    precision.scale((parameter.float() * float("inf")).sum()).backward()
    precision.step(optimizer)
    state = precision.state_dict()
    loaded = json.loads(json.dumps(state))
    other: Precision = subject.make()
    other.load_state_dict(loaded)
    expect(other.state_dict() == state, f"state {state} is restored as {other.state_dict()}")
    one = torch.ones((), device=subject.device)
    scales = float(precision.scale(one)), float(other.scale(one))
    expect(
        scales[0] == scales[1],
        f"a loss of 1 is scaled to {scales[0]:g}, but to {scales[1]:g} after loading the state",
    )


@check(world_sizes=(1,), in_worker=True)
def check_computes_as_named(subject: PrecisionSubject) -> None:
    """A layer computes in the declared dtype, which is that of the name, and inputs are rounded only once."""
    precision: Precision = subject.make()
    layer = precision.convert_module(nn.Linear(2, 2, device=subject.device))
    given = torch.full((3, 2), 1 / 3, device=subject.device, dtype=torch.float64)
    converted = precision.convert_input(given)
    expect(
        bool(torch.equal(converted, given.to(precision.param_dtype or given.dtype))),
        f"an input of 1/3 in float64 is converted to {converted[0, 0].item()!r}",
    )
    with precision.autocast() or nullcontext():
        computed = layer(precision.convert_input(given.float())).dtype
    declared = precision.compute_dtype or precision.param_dtype or torch.float32
    expect(computed == declared, f"it declares {declared}, but a layer computes in {computed}")
    named = _NAMED.get(subject.name)
    expect(named in (None, declared), f"{subject.name!r} means {named}, but it declares {declared}")


_NAMED = {
    "32-true": torch.float32,
    "64-true": torch.float64,
    "16-mixed": torch.float16,
    "bf16-mixed": torch.bfloat16,
    "16-true": torch.float16,
    "bf16-true": torch.bfloat16,
}


@check(world_sizes=(1,), in_worker=True)
def check_keeps_weights(subject: PrecisionSubject) -> None:
    """Weights are rounded to its dtype once. If that has 32 bits or more, no step rounds them further."""
    precision: Precision = subject.make()
    recipe = subject.make_recipe()
    net = recipe.net().to(subject.device)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    net = _prepared(precision, net)
    dtype = precision.param_dtype or torch.float32
    for parameter, value in zip(net.parameters(), before):
        expect(bool(torch.equal(parameter, value.to(dtype))), f"weights are rounded to less than {dtype}")
    if dtype not in (torch.float32, torch.float64):
        return
    (optimizer,) = recipe.optimizers(net)
    _step(recipe, precision, net, optimizer, 0, subject.device)
    for parameter, value in zip(net.parameters(), before):
        stepped = nn.Parameter(value.to(dtype))
        stepped.grad = parameter.grad
        torch.optim.SGD([stepped], lr=0.1, momentum=0.9).step()
        expect(bool(torch.equal(parameter, stepped)), f"a step rounds weights that are in {dtype}")


@check(world_sizes=(1,), in_worker=True)
def check_resumes(subject: PrecisionSubject) -> None:
    """Resumed from its state after one, two or three steps, training is bitwise equal to uninterrupted training."""
    recipe, count = subject.make_recipe(), 6
    whole, saved = _trained(subject, recipe, count)
    for after in (1, 2, 3):
        continued, _ = _trained(subject, recipe, count, after, saved[after])
        expect(
            all(map(torch.equal, continued, whole)),
            f"resumed after step {after}, weights differ from those of uninterrupted training",
        )


def _trained(
    subject: PrecisionSubject, recipe: Recipe, count: int, first: int = 0, saved: Any = None
) -> tuple[list[Tensor], list[Any]]:
    """Train from step `first` on; return the weights, and the state to save before each step."""
    precision: Precision = subject.make()
    net = _prepared(precision, recipe.net().to(subject.device))
    (optimizer,) = recipe.optimizers(net)
    torch.manual_seed(5)
    if saved is not None:
        weights, of_optimizer, state, numbers = saved
        net.load_state_dict(weights)
        optimizer.load_state_dict(copy.deepcopy(of_optimizer))
        precision.load_state_dict(json.loads(state))
        torch.set_rng_state(numbers)
    states = []
    for step in range(first, count):
        numbers = torch.get_rng_state()
        state = json.dumps(precision.state_dict())
        states.append(copy.deepcopy((net.state_dict(), optimizer.state_dict(), state, numbers)))
        # With loss scaling, the first step overflows, so that the scale differs from its initial value.
        _step(recipe, precision, net, optimizer, step, subject.device, 1e30 if step == 0 else 1.0)
    return [parameter.detach() for parameter in net.parameters()], states


def _step(
    recipe: Recipe,
    precision: Precision,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    device: str,
    factor: float = 1.0,
) -> None:
    data: Any = recipe.dataset()
    samples = [
        torch.stack(part).to(device) for part in zip(*(data[i] for i in range(16 * step, 16 * step + 16)))
    ]
    batch = precision.convert_input(samples)
    with precision.autocast() or nullcontext():
        loss = recipe.loss(net, batch)
    assert loss is not None
    optimizer.zero_grad()
    scaled = precision.scale(loss)
    if float(scaled.detach()) != float(loss.detach()):
        scaled = scaled * factor
    scaled.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    precision.unscale(optimizer)
    precision.step(optimizer)


@check(world_sizes=(2,))
def check_same_on_all_ranks(subject: PrecisionSubject) -> None:
    """Ranks with equal weights and gradients step to equal weights, whatever random numbers they draw."""
    first, second = subject.run(_stepped_in_a_run)
    expect(
        all(map(torch.equal, first, second)),
        "ranks that step with equal gradients have different weights: draw random numbers for a step "
        "from a generator that has the same seed on all ranks",
    )


def _stepped_in_a_run(subject: PrecisionSubject) -> list[Tensor]:
    # As in a run, ranks have different random numbers.
    rank = int(os.environ.get("RANK", 0))
    random.seed(rank)
    torch.manual_seed(1000 + rank)
    precision: Precision = subject.make()
    recipe = subject.make_recipe()
    net = _prepared(precision, recipe.net().to(subject.device))
    (optimizer,) = recipe.optimizers(net)
    for step in range(4):
        torch.rand(1 + rank)
        _step(recipe, precision, net, optimizer, step, subject.device)
    return [parameter.detach().cpu() for parameter in net.parameters()]
