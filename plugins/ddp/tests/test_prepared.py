"""What ddp sends between ranks call by call, and what ranks have of their own under local SGD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from step_traffic import LAYER_BYTES, NORM_BYTES, STATISTICS_BYTES, DriftsAt, Layers, inputs, sent
from torch import Tensor, nn

from stratagem import CombinationError, Runtime
from stratagem.errors import DataError, WorkerError


def runtime(devices: int = 2, check_replicas_every: int = 0, **options: Any) -> Runtime:
    return Runtime(
        strategy="ddp",
        accelerator="cpu",
        devices=devices,
        check_replicas_every=check_replicas_every,
        strategy_options={"start_method": "fork", **options},
    )


def calls(live: Runtime) -> list[tuple[str, dict[str, int]]]:
    """Return of each call its name and what it sent."""
    net, x, seen, losses = Layers(), inputs(live.rank), [], []
    net.second.requires_grad_(False)
    module, optimizer = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    (prepared,) = live._prepared

    def call(name: str, function: Any) -> None:
        seen.append((name, sent(function)))

    def forward() -> None:
        losses.append(module(x).square().mean())

    def backward() -> None:
        live.backward(losses.pop())

    def evaluate() -> None:
        with prepared.evaluating():
            prepared.evaluate(x)

    for _ in range(2):  # the second forward arranges buckets by the first backward
        forward()
        backward()
    optimizer.step()
    optimizer.zero_grad()
    call("forward", forward)
    call("backward", backward)
    call("step", optimizer.step)
    with live.no_sync(module):
        call("forward within no_sync", forward)
        call("backward within no_sync", backward)
    call("forward", forward)
    call("backward after no_sync", backward)
    with live.no_sync(module):
        forward()
        call("backward of the loss itself within no_sync", lambda: losses.pop().backward())
    forward()
    call("backward of the loss itself", lambda: losses.pop().backward())
    with torch.no_grad():
        call("forward without gradients", lambda: module(x))
    optimizer.step()
    optimizer.zero_grad()
    net.second.requires_grad_(True)
    call("forward with another layer that is trained", forward)
    call("backward of both layers", backward)
    call("evaluation", evaluate)
    call("checkpoint", prepared.model_tensors)
    call("end", prepared.restore_module)
    return seen


@pytest.mark.parametrize("buffers", ["equal", "local"])
def test_what_each_call_sends(buffers: str) -> None:
    statistics = {"broadcast": STATISTICS_BYTES} if buffers == "equal" else {}
    one, both = {"all_reduce": LAYER_BYTES + NORM_BYTES}, {"all_reduce": 2 * LAYER_BYTES + NORM_BYTES}
    assert runtime(buffers=buffers).launch(calls, quiet=True) == [
        ("forward", statistics),
        ("backward", one),
        ("step", {}),
        ("forward within no_sync", statistics),
        ("backward within no_sync", {}),
        ("forward", {}),
        ("backward after no_sync", one),
        ("backward of the loss itself within no_sync", {}),
        ("backward of the loss itself", one),
        ("forward without gradients", statistics),
        # One byte for each of the four that were trained, whose gradients are gone; parameters aren't sent again.
        ("forward with another layer that is trained", {**statistics, "all_reduce": 4}),
        ("backward of both layers", both),
        ("evaluation", statistics),
        ("checkpoint", statistics),
        ("end", statistics),
    ]


def start(live: Runtime, trains: bool) -> Any:
    net = Layers()
    net.requires_grad_(trains)
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor += live.rank
    live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return live.collectives.gather_objects({name: each.tolist() for name, each in net.state_dict().items()})


@pytest.mark.parametrize("trains", [True, False])
def test_all_ranks_begin_with_what_rank_0_has(trains: bool) -> None:
    first, second = runtime().launch(start, trains, quiet=True)
    assert first == second == {name: each.tolist() for name, each in Layers().state_dict().items()}


@pytest.mark.filterwarnings("error")
def test_torchs_older_keyword_is_taken_without_a_warning() -> None:
    first, second = runtime(broadcast_buffers=False).launch(start, True, quiet=True)
    own = {name for name in first if first[name] != second[name]}
    assert own == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def evaluation_of_frozen(live: Runtime) -> dict[str, int]:
    net = Layers()
    net.requires_grad_(False)  # until later
    live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    (prepared,) = live._prepared

    def evaluate() -> None:
        with prepared.evaluating():
            pass

    return sent(evaluate)


def test_local_buffers_of_a_frozen_module_are_not_sent() -> None:
    assert runtime().launch(evaluation_of_frozen, quiet=True) == {"broadcast": STATISTICS_BYTES}
    assert runtime(buffers="local").launch(evaluation_of_frozen, quiet=True) == {}


def drifted(live: Runtime, path: str) -> Any:
    net = DriftsAt(forward=18)  # neither among the first 16 nor a power of two, after which all are compared
    module, _ = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(18):
        module(inputs(live.rank))
    live.save(path)
    return live.collectives.gather_objects(net.seen.item())


def test_a_checkpoint_compares_buffers_whenever_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"buffer 'seen' differs between ranks 0 and 1.*option buffers='local'"
    ):
        runtime().launch(drifted, str(tmp_path / "c"), quiet=True)
    assert runtime(buffers="local").launch(drifted, str(tmp_path / "c"), quiet=True) == [17, 18]


def forwards_after_a_drift(live: Runtime, trains: bool) -> None:
    net = DriftsAt(forward=2)
    module, _ = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    module(inputs(live.rank))
    with torch.set_grad_enabled(trains):
        for _ in range(2):
            module(inputs(live.rank))


def test_training_forwards_compare_buffers() -> None:
    """Other forwards may run on some ranks alone."""
    with pytest.raises(DataError, match="buffer 'seen' differs between ranks 0 and 1"):
        runtime().launch(forwards_after_a_drift, True, quiet=True)
    runtime().launch(forwards_after_a_drift, False, quiet=True)


LOCAL_SGD = {
    "ddp_comm_hook": "post_local_sgd",
    "ddp_comm_state": {"start_localSGD_iter": 2},
    "model_averaging_period": 3,
}


def steps_apart(live: Runtime) -> list[bool]:
    """Return after each step whether the ranks' weights differ; two optimizers step a layer each."""
    net = Layers()
    net.norm.requires_grad_(False)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (net.first, net.second)]
    module, *optimizers = live.setup(net, *optimizers)
    apart = []
    for _ in range(9):
        live.backward(module(inputs(live.rank)).square().mean())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        weights = live.collectives.gather_objects([net.first.weight.tolist(), net.second.weight.tolist()])
        apart.append(weights[0] != weights[1])
    return apart


def test_a_step_of_two_optimizers_counts_once_for_local_sgd() -> None:
    # An even period: with an odd one, every second of twice as many counts would average after the same steps.
    options = {**LOCAL_SGD, "model_averaging_period": 4}
    seen = runtime(check_replicas_every=1, **options).launch(steps_apart, quiet=True)
    # Two steps on averaged gradients, one whose weights are averaged, then three out of four on the ranks' own.
    assert seen == [False, False, False, True, True, True, False, True, True]


def local_after_a_load(live: Runtime, path: str, is_first: bool) -> list[bool]:
    """Save what has no steps of local SGD, or load it; return after each step whether the ranks' weights differ."""
    net = Layers()
    net.norm.requires_grad_(False)
    module, optimizer = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    if is_first:
        live.save(path)
        return []
    live.load(path)
    apart = []
    for _ in range(4):
        live.backward(module(inputs(live.rank)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        weights = live.collectives.gather_objects(net.first.weight.tolist())
        apart.append(weights[0] != weights[1])
    return apart


def test_local_sgd_begins_again_with_another_strategys_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    runtime().launch(local_after_a_load, path, True, quiet=True)
    resumed = runtime(**LOCAL_SGD).launch(local_after_a_load, path, False, quiet=True)
    assert resumed == [False, False, False, True]


def test_a_run_of_one_process_counts_its_steps_for_local_sgd(tmp_path: Path) -> None:
    """More ranks go on where it was, after its warm-up."""
    path = str(tmp_path / "c")
    runtime(devices=1, **LOCAL_SGD).launch(resumed_locally, path, True, quiet=True)
    # The fourth and fifth step are on the ranks' own gradients, and after the sixth weights are averaged.
    resumed = runtime(**LOCAL_SGD).launch(local_after_a_load, path, False, quiet=True)
    assert resumed == [True, True, False, True]


def saved_apart(live: Runtime, path: str) -> list[Any]:
    """Return whether a save changes what a rank has, and each rank's weights and momenta."""
    net = Layers()
    module, optimizer = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5))

    def own() -> list[Tensor]:
        momentum = optimizer.state[net.first.weight]["momentum_buffer"]
        return [net.first.weight.detach().clone(), momentum.clone()]

    for _ in range(4):
        live.backward(module(inputs(live.rank)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    before = own()
    live.save(path)
    return live.collectives.gather_objects((before, own()))


def test_a_checkpoint_of_averages_leaves_each_rank_its_own(tmp_path: Path) -> None:
    (first, after_first), (second, after_second) = runtime(**LOCAL_SGD).launch(
        saved_apart, str(tmp_path / "c"), quiet=True
    )
    for one, other, *after in zip(first, second, after_first, after_second):
        assert not torch.equal(one, other)
        assert torch.equal(after[0], one)
        assert torch.equal(after[1], other)


def resumed_locally(live: Runtime, path: str, is_first: bool) -> Any:
    net = Layers()
    module, optimizer = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    if is_first:
        for _ in range(3):
            live.backward(module(inputs(live.rank)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        live.save(path)
    else:
        live.load(path)
    return live.collectives.gather_objects({name: each.tolist() for name, each in net.state_dict().items()})


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({"buffers": "local"}, ["norm.running_mean"]),
        ({**LOCAL_SGD, "ddp_comm_state": {"start_localSGD_iter": 0}}, ["first.weight"]),
    ],
    ids=["buffers", "weights"],
)
def test_each_rank_resumes_with_what_is_its_own(
    tmp_path: Path, options: dict[str, Any], own: list[str]
) -> None:
    path = str(tmp_path / "c")
    before = runtime(**options).launch(resumed_locally, path, True, quiet=True)
    assert all(before[0][name] != before[1][name] for name in own)
    assert runtime(**options).launch(resumed_locally, path, False, quiet=True) == before


POWER_SGD = {"ddp_comm_hook": "powersgd", "ddp_comm_state": {"start_powerSGD_iter": 2}}


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, POWER_SGD), (POWER_SGD, {}), (POWER_SGD, LOCAL_SGD), (LOCAL_SGD, POWER_SGD)],
    ids=["powersgd begins", "powersgd ends", "local begins", "local ends"],
)
def test_a_run_goes_on_with_another_hook(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    path = str(tmp_path / "c")
    saved = runtime(**before).launch(resumed_locally, path, True, quiet=True)
    first, second = runtime(**after).launch(resumed_locally, path, False, quiet=True)
    assert first == second
    for name, value in first.items():
        if not name.startswith("norm.running"):
            mean = (torch.tensor(saved[0][name]) + torch.tensor(saved[1][name])) / 2
            torch.testing.assert_close(torch.tensor(value), mean.to(torch.tensor(value).dtype))


def frozen_apart(live: Runtime) -> None:
    net = Layers()
    net.norm.requires_grad_(False)
    trained = [each for each in net.parameters() if each.requires_grad]
    module, optimizer = live.setup(net, torch.optim.SGD(trained, lr=0.1))
    for step in range(6):
        if step == 4 and live.rank == 1:
            net.norm.bias.add_(1)
        live.backward(module(inputs(live.rank)).square().mean())
        optimizer.step()


def test_what_is_not_averaged_is_compared_under_local_sgd() -> None:
    with pytest.raises(WorkerError, match=r"parameter 'norm\.bias'"):
        runtime(check_replicas_every=1, **LOCAL_SGD).launch(frozen_apart, quiet=True)


def frozen_before_the_first_forward(live: Runtime) -> list[float]:
    net = Layers()
    live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    net.norm.requires_grad_(False)
    live.backward(net.second.bias.square().sum())
    assert net.second.bias.grad is not None
    torch.testing.assert_close(net.second.bias.grad, 2 * net.second.bias.detach())
    return net.second.bias.grad.tolist()


@pytest.mark.parametrize("options", [{"devices": 1}, LOCAL_SGD], ids=["one process", "local"])
def test_parameters_are_frozen_freely_before_the_first_forward(options: dict[str, Any]) -> None:
    assert any(runtime(**options).launch(frozen_before_the_first_forward, quiet=True))


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Layers().first

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.layer(x).square().mean()
        return loss


def whole_step(live: Runtime) -> Any:
    net = Squares()
    net(inputs(live.rank)).backward()
    own = net.layer.bias.grad
    net.zero_grad()
    live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    live._prepared[0].forward_backward(inputs(live.rank))
    return live.collectives.gather_objects((own, net.layer.bias.grad))


def test_a_loss_that_comes_without_a_divisor_is_not_divided() -> None:
    (one, first), (other, second) = runtime().launch(whole_step, quiet=True)
    torch.testing.assert_close(first, (one + other) / 2)
    assert torch.equal(first, second)


def averaged_ranks(live: Runtime) -> int:
    net = Layers()
    live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return live._prepared[0].averaged_ranks()


def test_weights_of_losses_are_refused_under_local_sgd() -> None:
    assert runtime().launch(averaged_ranks, quiet=True) == 2
    with pytest.raises(CombinationError, match="with post_local_sgd each rank steps by its own gradients"):
        runtime(**LOCAL_SGD).launch(averaged_ranks, quiet=True)
