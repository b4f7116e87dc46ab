"""Backwards and forwards of your own training loop that go another way than one forward, one backward, one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from live_ddp import ready, runtime
from step_traffic import Layers, inputs, sent
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stratagem import Runtime
from stratagem.errors import ConfigError, WorkerError


def penalty(live: Runtime, net: nn.Module) -> Tensor:
    """A loss of the weights alone, another one on each rank."""
    total: Any = sum(each.square().sum() for each in net.parameters())
    return (live.rank + 1) * total


def first_backward_is_raw(live: Runtime, within_no_sync: bool) -> list[Any]:
    net = Layers()
    module, _ = ready(live, net)
    if within_no_sync:
        with live.no_sync(module):
            penalty(live, net).backward()
    else:
        penalty(live, net).backward()
    return live.collectives.gather_objects((net.first.weight.detach(), net.first.weight.grad))


@pytest.mark.parametrize("within_no_sync", [False, True])
def test_a_backward_of_the_loss_itself_averages_what_no_forward_announced(within_no_sync: bool) -> None:
    (weight, first), (_, second) = runtime().launch(first_backward_is_raw, within_no_sync, quiet=True)
    scales = (1, 2) if within_no_sync else (1.5, 1.5)
    torch.testing.assert_close(first, 2 * scales[0] * weight)
    torch.testing.assert_close(second, 2 * scales[1] * weight)


def messages_of_backwards(live: Runtime) -> list[Any]:
    """Return what each kind of backward of a penalty sends."""
    net = Layers()
    net.second.requires_grad_(False)
    module, optimizer = ready(live, net)
    live.backward(module(inputs(live.rank)).square().mean())
    optimizer.step()
    optimizer.zero_grad()

    def trained() -> Tensor:
        return (live.rank + 1) * net.first.weight.square().sum()

    def within_no_sync() -> None:
        with live.no_sync(module):
            live.backward(trained())

    return [
        sent(lambda: live.backward(trained())),
        sent(lambda: trained().backward()),
        sent(within_no_sync),
        sent(optimizer.step) != {},
        sent(optimizer.step),
    ]


def test_what_a_backward_without_a_forward_sends() -> None:
    by_runtime, raw, within_no_sync, completes, again = runtime().launch(messages_of_backwards, quiet=True)
    assert by_runtime == raw
    assert by_runtime["all_reduce"] > 0
    assert (within_no_sync, completes, again) == ({}, True, {})


def messages_of_reentrant(live: Runtime) -> list[dict[str, int]]:
    """Return what backwards of a penalty send, of which the second runs a backward within it."""
    net = Layers()
    ready(live, net)

    def penalty_of(layer: Any) -> Tensor:
        return (live.rank + 1) * layer.weight.square().sum()

    def within(x: Tensor) -> Tensor:
        return x * penalty_of(net.second)

    one = torch.ones(1, requires_grad=True)
    return [
        sent(lambda: live.backward(penalty_of(net.first) + penalty_of(net.second))),
        sent(
            lambda: live.backward(penalty_of(net.first) + checkpoint(within, one, use_reentrant=True).sum())
        ),
    ]


def test_a_backward_within_another_is_averaged_once() -> None:
    plain, reentrant = runtime().launch(messages_of_reentrant, quiet=True)
    assert reentrant == plain


class Fails(nn.Module):
    """Raises an error of its own in a forward, or returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.what = Layers().first, ""

    def forward(self, x: Tensor) -> Tensor | None:
        if self.what == "raise":
            raise RuntimeError("shapes of its own")
        y: Tensor = self.layer(x)
        return None if self.what == "none" else y


def own_error(live: Runtime) -> None:
    net = Fails()
    module, _ = ready(live, net)
    net.what = "raise"
    module(inputs(live.rank))


def test_an_error_of_a_forward_stays_what_it_is() -> None:
    with pytest.raises(WorkerError, match="RuntimeError: shapes of its own") as caught:
        runtime().launch(own_error, quiet=True)
    assert not isinstance(caught.value, ConfigError)


def returns_none(live: Runtime) -> Any:
    net = Fails()
    module, optimizer = ready(live, net)
    net.what = "none"
    nothing = module(inputs(live.rank))
    net.what = ""
    live.backward(module(inputs(live.rank)).square().mean())
    optimizer.step()
    return live.collectives.gather_objects((nothing is None, net.layer.weight.detach()))


def test_a_forward_may_return_none() -> None:
    (is_none, first), (_, second) = runtime().launch(returns_none, quiet=True)
    assert is_none
    assert torch.equal(first, second)


def follows(live: Runtime) -> list[bool]:
    """Return, change by change, whether DistributedDataParallel was constructed again before a forward."""
    net = Layers()
    module, _ = ready(live, net)
    (prepared,) = live._prepared
    seen = []

    def forward() -> None:
        before = prepared._tracked.ddp
        module(inputs(live.rank))
        seen.append(prepared._tracked.ddp is not before)

    for layer, flag in ((None, True), (net.second, False), (net.second, True), (net.second, True)):
        if layer is not None:
            layer.requires_grad_(flag)
        forward()
    with torch.no_grad():
        net.first.requires_grad_(False)
        forward()
    forward()
    net.requires_grad_(False)
    forward()
    net.requires_grad_(True)
    forward()
    return seen


@pytest.mark.parametrize(
    ("unused", "expected"),
    [
        (False, [False, True, True, False, False, True, True, True]),
        # A parameter that is frozen is found unused: only one that wasn't there before makes a difference.
        (True, [False, False, False, False, False, False, False, False]),
    ],
)
def test_when_it_is_constructed_again(unused: bool, expected: list[bool]) -> None:
    assert runtime(find_unused_parameters=unused).launch(follows, quiet=True) == expected


def follows_loads(live: Runtime, folder: str) -> list[bool]:
    """Return, load by load, whether DistributedDataParallel was constructed again before the next forward."""
    net = Layers()
    module, _ = ready(live, net)
    (prepared,) = live._prepared

    def constructs(checkpoint: str) -> bool:
        live.load(f"{folder}/{checkpoint}")
        before = prepared._tracked.ddp
        live.backward(module(inputs(live.rank)).square().mean())
        return prepared._tracked.ddp is not before

    live.save(f"{folder}/first")
    seen = [constructs("first")]
    live.backward(module(inputs(live.rank)).square().mean())
    live.save(f"{folder}/later")
    return [*seen, constructs("first"), constructs("later")]


def test_a_load_constructs_again_where_buckets_are_arranged_otherwise(tmp_path: Path) -> None:
    """The first backward arranges buckets: a run that goes back to its beginning has to do so again."""
    assert runtime().launch(follows_loads, str(tmp_path), quiet=True) == [False, True, True]


def gradients_over_a_load(live: Runtime, folder: str) -> list[Any]:
    net = Layers()
    module, _ = ready(live, net)
    for _ in range(2):
        live.backward(module(inputs(live.rank)).square().mean())
    live.save(f"{folder}/saved")
    before = net.first.weight.grad.clone()
    live.load(f"{folder}/saved")
    module(inputs(live.rank))
    return live.collectives.gather_objects((before, net.first.weight.grad))


def test_a_load_leaves_gradients_as_they_are(tmp_path: Path) -> None:
    for before, after in runtime().launch(gradients_over_a_load, str(tmp_path), quiet=True):
        torch.testing.assert_close(after, before)


class Breaks(torch.autograd.Function):
    """Passes its input on, and raises in the backward."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        raise ArithmeticError("in backward")


def after_an_error(live: Runtime, layer: str, keeps: bool) -> list[Any]:
    """Raise on both ranks where a backward comes to the outputs of a layer, then train on."""
    net = Layers()
    module, optimizer = ready(live, net)

    handle = getattr(net, layer).register_forward_hook(lambda module, args, output: Breaks.apply(output))
    with pytest.raises(ArithmeticError):
        live.backward(module(inputs(live.rank)).square().mean())
    handle.remove()
    if not keeps:
        optimizer.zero_grad()
    live.backward(module(inputs(live.rank)).square().mean())
    optimizer.step()
    return live.collectives.gather_objects((net.norm.bias.grad, net.first.weight.detach()))


@pytest.mark.parametrize(("layer", "keeps"), [("norm", False), ("first", False), ("first", True)])
def test_training_goes_on_after_an_error_in_a_backward(layer: str, keeps: bool) -> None:
    """Gradients that the broken backward left count, if they are kept."""
    (first, weight), (second, other) = runtime().launch(after_an_error, layer, keeps, quiet=True)
    gradients = []
    for rank in range(2):
        net = Layers()
        net(inputs(rank)).square().mean().backward()
        gradients.append(net.norm.bias.grad)
    mean = (gradients[0] + gradients[1]) / 2  # type: ignore[operator]  # both are there
    torch.testing.assert_close(first, 2 * mean if keeps else mean)
    assert torch.equal(first, second)
    assert torch.equal(weight, other)


def step_after_an_error(live: Runtime, forwards: int) -> list[Any]:
    """Step by what a broken backward left; return this rank's own gradient of it, and the weights."""
    net = Layers()
    module, optimizer = ready(live, net)
    handle = net.first.register_forward_hook(lambda module, args, output: Breaks.apply(output))
    with pytest.raises(ArithmeticError):
        live.backward(module(inputs(live.rank)).square().mean())
    handle.remove()
    own = net.second.bias.grad.clone()
    for _ in range(forwards):
        module(inputs(live.rank))
    optimizer.step()
    return live.collectives.gather_objects((own, net.second.bias.detach()))


@pytest.mark.parametrize("forwards", [0, 1])
def test_a_step_averages_what_a_broken_backward_left(forwards: int) -> None:
    (one, first), (other, second) = runtime().launch(step_after_an_error, forwards, quiet=True)
    assert not torch.equal(one, other)
    torch.testing.assert_close(first, Layers().second.bias.detach() - 0.1 * (one + other) / 2)
    assert torch.equal(first, second)


def complaints(live: Runtime) -> list[str]:
    net = Layers()
    ready(live, net)
    (prepared,) = live._prepared
    said = "Parameter indices which did not receive grad for rank 0: "
    texts = ("other words", f"{said}0 2", f"{said}0 1 2 5", f"{said}5 6", f"{said}6")
    return [str(prepared._tracked.unused(RuntimeError(text))) for text in texts]


def test_torchs_complaint_about_unused_parameters_is_read() -> None:
    found = [each.partition("doesn't depend on ")[2] for each in runtime().launch(complaints, quiet=True)]
    assert [each.partition(", whose gradients")[0] for each in found] == [
        "some parameters",
        "'first.weight', 'second.weight'",
        "'first.weight', 'first.bias', 'second.weight' and 1 more",
        "'norm.bias'",
        "some parameters",
    ]
