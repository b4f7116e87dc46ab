"""Parameters that are frozen or unfrozen around a step of your own training loop: averaged, left alone or refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from live_ddp import ready, runtime
from step_traffic import WIDTH, Layers, inputs, sent
from torch import Tensor, nn

from stratagem import ConfigError, Runtime
from stratagem.errors import DataError

LOCAL_SGD = {
    "ddp_comm_hook": "post_local_sgd",
    "ddp_comm_state": {"start_localSGD_iter": 0},
    "model_averaging_period": 9,
}


def loss_of(live: Runtime, module: Any) -> Tensor:
    loss: Tensor = module(inputs(live.rank)).square().mean()
    return loss


def changes_between(live: Runtime, requires_grad: bool) -> None:
    net = Layers()
    net.first.bias.requires_grad_(not requires_grad)
    module, _ = ready(live, net)
    loss = loss_of(live, module)
    net.first.bias.requires_grad_(requires_grad)
    live.backward(loss)


@pytest.mark.parametrize("options", [{}, LOCAL_SGD], ids=["averages", "local"])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_change_between_a_forward_and_its_backward_is_refused(
    options: dict[str, Any], requires_grad: bool
) -> None:
    said = f"requires_grad of 'first.bias' has become {requires_grad} between a forward and the step after it"
    with pytest.raises(DataError, match=said):
        runtime(**options).launch(changes_between, requires_grad, quiet=True)


def changes_between_where_unused_ones_are_found(live: Runtime) -> list[Any]:
    net = Layers()
    module, _ = ready(live, net)
    loss = loss_of(live, module)
    net.first.bias.requires_grad_(False)
    live.backward(loss)
    return live.collectives.gather_objects(net.second.bias.grad)


def test_a_change_between_a_forward_and_its_backward_is_taken_where_unused_parameters_are_found() -> None:
    first, second = runtime(find_unused_parameters=True).launch(
        changes_between_where_unused_ones_are_found, quiet=True
    )
    assert torch.equal(first, second)


def changes_before_another_backward(live: Runtime) -> float:
    net = Layers()
    module, _ = ready(live, net)
    live.backward(loss_of(live, module))
    net.first.bias.requires_grad_(False)
    net.zero_grad()
    live.backward(net.second.bias.square().sum())
    return torch.equal(net.second.bias.grad, 2 * net.second.bias.detach())


@pytest.mark.parametrize("options", [{}, LOCAL_SGD], ids=["averages", "local"])
def test_a_change_before_a_backward_that_no_forward_announced_is_allowed(options: dict[str, Any]) -> None:
    assert runtime(**options).launch(changes_before_another_backward, quiet=True)


def changes_after(live: Runtime) -> list[Any]:
    net = Layers()
    module, optimizer = ready(live, net)
    live.backward(loss_of(live, module))
    net.first.bias.requires_grad_(False)
    before = net.first.bias.detach().clone()
    optimizer.step()
    return live.collectives.gather_objects((before, net.first.bias.detach(), net.first.bias.grad))


def test_a_change_between_a_backward_and_its_step_is_allowed() -> None:
    (before, first, gradient), (_, second, _) = runtime().launch(changes_after, quiet=True)
    torch.testing.assert_close(first, before - 0.1 * gradient)
    assert torch.equal(first, second)


def gradient_after_a_change(live: Runtime) -> list[Any]:
    """Return each rank's own gradient of a micro-batch, and what the next forward has made of it."""
    net = Layers()
    net.second.requires_grad_(False)
    module, _ = ready(live, net)
    with live.no_sync(module):
        live.backward(loss_of(live, module))
    before = net.first.bias.grad.clone()
    net.second.requires_grad_(True)
    module(inputs(live.rank))
    return live.collectives.gather_objects((before, net.first.bias.grad))


@pytest.mark.parametrize("is_local", [False, True])
def test_a_change_within_a_window_keeps_the_gradients_of_earlier_micro_batches(is_local: bool) -> None:
    options = LOCAL_SGD if is_local else {}
    (one, first), (other, second) = runtime(**options).launch(gradient_after_a_change, quiet=True)
    assert not torch.equal(one, other)
    if is_local:
        assert torch.equal(first, one)
        assert torch.equal(second, other)
    else:
        torch.testing.assert_close(first, (one + other) / 2)
        assert torch.equal(first, second)


def part_of_a_window(module: Any, index: int, rank: int) -> Tensor:
    loss: Tensor = module(inputs(10 * index + rank)).square().mean()
    return loss


def weights_after_a_window(live: Runtime, synced: int) -> list[Any]:
    """Step by three micro-batches, of which the first doesn't train a layer yet; one of them is synchronized."""
    net = Layers()
    net.second.requires_grad_(False)
    module, optimizer = ready(live, net)
    for index in range(3):
        if index == 1:
            net.second.requires_grad_(True)
        with nullcontext() if index == synced else live.no_sync(module):
            live.backward(part_of_a_window(module, index, live.rank))
    optimizer.step()
    return live.collectives.gather_objects([each.detach() for each in net.parameters()])


@pytest.mark.parametrize("synced", [0, 1, 2])
def test_a_window_within_which_a_layer_is_unfrozen_steps_as_one_process_does(synced: int) -> None:
    first, second = runtime().launch(weights_after_a_window, synced, quiet=True)
    net = Layers()
    net.second.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for index in range(3):
        if index == 1:
            net.second.requires_grad_(True)
        for rank in range(2):
            (part_of_a_window(net, index, rank) / 2).backward()
    optimizer.step()
    torch.testing.assert_close(first, [each.detach() for each in net.parameters()])
    assert all(map(torch.equal, first, second))


def stepped_after_a_forward_alone(live: Runtime) -> list[Any]:
    net = Layers()
    net.second.requires_grad_(False)
    module, optimizer = ready(live, net)
    module(inputs(live.rank))  # it prepares a reduction, and no backward follows
    net.second.requires_grad_(True)
    with live.no_sync(module):
        live.backward(loss_of(live, module))
    own = net.second.bias.grad.clone()
    optimizer.step()
    return live.collectives.gather_objects((own, net.second.bias.detach()))


def test_a_change_after_a_forward_that_had_no_backward() -> None:
    (one, first), (other, second) = runtime().launch(stepped_after_a_forward_alone, quiet=True)
    torch.testing.assert_close(first, Layers().second.bias.detach() - 0.1 * (one + other) / 2)
    assert torch.equal(first, second)


def stepped_after_a_frozen_forward(live: Runtime) -> list[Any]:
    net = Layers()
    module, optimizer = ready(live, net)
    loss_of(live, module).backward()
    net.zero_grad()
    net.requires_grad_(False)
    module(inputs(live.rank))
    net.requires_grad_(True)
    ((live.rank + 1) * net.second.bias.square().sum()).backward()
    optimizer.step()
    return live.collectives.gather_objects(net.second.bias.detach())


def test_a_backward_after_a_forward_of_a_module_that_was_frozen_is_averaged() -> None:
    first, second = runtime().launch(stepped_after_a_frozen_forward, quiet=True)
    before = Layers().second.bias.detach()
    torch.testing.assert_close(first, before - 0.1 * 1.5 * 2 * before)
    assert torch.equal(first, second)


def all_unfrozen_later(live: Runtime) -> list[Any]:
    net = Layers()
    net.requires_grad_(False)
    module, _ = ready(live, net)
    module(inputs(live.rank))
    net.requires_grad_(True)
    live.backward(loss_of(live, module))
    return live.collectives.gather_objects(net.first.bias.grad)


def test_a_module_that_was_frozen_at_setup_is_trained_once_it_is_unfrozen() -> None:
    first, second = runtime().launch(all_unfrozen_later, quiet=True)
    net, means = Layers(), []
    for rank in range(2):
        net.zero_grad()
        net(inputs(rank)).square().mean().backward()
        means.append(net.first.bias.grad.clone())
    torch.testing.assert_close(first, sum(means) / 2)
    assert torch.equal(first, second)


def differing(live: Runtime) -> None:
    net = Layers()
    net.requires_grad_(False)
    net.norm.requires_grad_(True)
    module, _ = ready(live, net)
    live.backward(loss_of(live, module))
    (net.second if live.rank else net.first).requires_grad_(True)
    module(inputs(live.rank))


def test_ranks_that_unfreeze_other_parameters_are_refused() -> None:
    said = (
        r"'first\.weight' has become (True on rank 0 and is False|False on rank 1 and is True) on rank [01]"
    )
    with pytest.raises(DataError, match=said):
        runtime().launch(differing, quiet=True)


def with_unused(live: Runtime) -> list[dict[str, int]]:
    """Return what a forward sends when a layer was frozen, then unfrozen, and when a new one was unfrozen."""
    net = Layers()
    net.norm.requires_grad_(False)
    module, _ = ready(live, net)
    live.backward(loss_of(live, module))
    seen = []
    for layer, flag in ((net.second, False), (net.second, True), (net.norm, True)):
        layer.requires_grad_(flag)
        seen.append(sent(lambda: module(inputs(live.rank))))
    return seen


def test_freezing_costs_nothing_where_unused_parameters_are_found() -> None:
    froze, unfroze, new = runtime(find_unused_parameters=True, buffers="local").launch(
        with_unused, quiet=True
    )
    assert (froze, unfroze) == ({}, {})
    assert "all_reduce" in new


class Several(nn.Module):
    """Uses one of its layers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers[0](x)
        return out


def uses_one_of(live: Runtime, count: int) -> None:
    module, optimizer = ready(live, Several(count))
    for _ in range(2):
        live.backward(loss_of(live, module))
        optimizer.step()


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (4, "'layers.1.weight', 'layers.2.weight', 'layers.3.weight', whose gradients"),
        (6, "'layers.1.weight', 'layers.2.weight', 'layers.3.weight' and 2 more, whose gradients"),
    ],
)
def test_unused_parameters_are_named(count: int, names: str) -> None:
    with pytest.raises(ConfigError, match=f"doesn't depend on {names}"):
        runtime().launch(uses_one_of, count, quiet=True)


@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
def test_a_checkpoint_is_resumed_where_buckets_are_not_arranged_by_a_backward(
    tmp_path: Path, option: str
) -> None:
    runtime().launch(resumed, str(tmp_path / "c"), True, True, quiet=True)
    (expected, _), _ = runtime().launch(resumed, str(tmp_path / "c"), False, True, quiet=True)
    first, second = runtime(**{option: True}).launch(resumed, str(tmp_path / "c"), False, True, quiet=True)
    torch.testing.assert_close(first[0], expected)
    assert torch.equal(first[0], second[0])


def resumed(live: Runtime, path: str, is_first: bool, trains_second: bool) -> list[Any]:
    net = Layers()
    net.second.requires_grad_(trains_second)
    module, _ = ready(live, net)
    if is_first:
        for _ in range(2):
            live.backward(loss_of(live, module))
        live.save(path)
    else:
        live.load(path)
        live.backward(loss_of(live, module))
    return live.collectives.gather_objects((net.first.bias.grad, net.second.bias.grad))


@pytest.mark.parametrize("grows", [False, True])
def test_a_checkpoint_of_a_run_that_trained_other_parameters_is_resumed(tmp_path: Path, grows: bool) -> None:
    runtime().launch(resumed, str(tmp_path / "c"), True, not grows, quiet=True)
    first, second = runtime().launch(resumed, str(tmp_path / "c"), False, grows, quiet=True)
    assert torch.equal(first[0], second[0])
    if grows:
        assert torch.equal(first[1], second[1])
    else:
        assert (first[1], second[1]) == (None, None)
