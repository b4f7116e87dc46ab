"""What ddp_sharded adds to ddp: who has which states, one dtype per optimizer, and buffers of manual modules."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small import TwoPlayers
from step_traffic import WIDTH, Layers, inputs, traffic_of_fit
from stratagem_sharded import DDPShardedStrategy
from torch import Tensor, nn

from stratagem import ConfigError, Runtime
from stratagem.errors import WorkerError

NORM_OF_4_BYTES = 4 * 2 * 4 + 8


def runtime(devices: int = 2, **settings: Any) -> Runtime:
    return Runtime(
        strategy="ddp_sharded",
        accelerator="cpu",
        devices=devices,
        strategy_options={"start_method": "fork"},
        **settings,
    )


def step(live: Runtime, module: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    live.backward(module(inputs(live.rank)).square().mean())
    optimizer.step()


def of_several_dtypes(live: Runtime) -> None:
    net = Layers()
    net.second.double()
    net.norm.bfloat16()
    live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))


def test_an_optimizer_over_several_dtypes_is_refused() -> None:
    said = (
        r"SGD steps 'first\.weight', which is torch\.float32, and 'second\.weight', which is torch\.float64, and "
        "ddp_sharded takes one dtype for each optimizer"
    )
    with pytest.raises(ConfigError, match=said):
        runtime().launch(of_several_dtypes, quiet=True)


def of_each_dtype(live: Runtime) -> list[str]:
    net = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).double()])
    _, *optimizers = live.setup(net, *(torch.optim.SGD(each.parameters(), lr=0.1) for each in net))
    return [str(each.param_groups[0]["params"][0].dtype) for each in optimizers]


def test_an_optimizer_for_each_dtype_is_taken() -> None:
    assert runtime().launch(of_each_dtype, quiet=True) == ["torch.float32", "torch.float64"]


def states(live: Runtime, **how: Any) -> Any:
    net = Layers()
    module, optimizer = live.setup(net, torch.optim.Adam(net.parameters(), lr=0.1), **how)
    step(live, module, optimizer)
    (prepared,) = live._prepared
    names = sorted(name.split("/")[-2] for name in prepared.optimizer_tensors() if name.endswith("exp_avg"))
    described = [each["class"] for each in prepared.state()["optimizers"]]
    try:
        count: Any = len(optimizer.state)
    except ConfigError as error:
        count = str(error)
    return live.collectives.gather_objects((names, described, count))


def test_each_parameters_states_are_with_one_rank_and_the_class_is_the_users() -> None:
    (first, described, said), (second, *of_rank_1) = runtime().launch(states, quiet=True)
    every = sorted(dict(Layers().named_parameters()))
    assert sorted(first + second) == every
    assert first
    assert second
    assert of_rank_1 == [described, said]
    assert described == ["Adam"]
    assert "optimizer.state was read or changed under ddp_sharded" in said


@pytest.mark.parametrize("how", [{}, {"accumulate": 2}], ids=str)
def test_one_process_reads_all_states(how: dict[str, Any]) -> None:
    """With `accumulate`, it gets an object of the runtime in the place of its optimizer."""
    every = sorted(dict(Layers().named_parameters()))
    assert runtime(devices=1).launch(partial(states, **how), quiet=True) == [(every, ["Adam"], len(every))]


def changed_on_one_rank(live: Runtime) -> None:
    net = Layers()
    module, optimizer = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    step(live, module, optimizer)
    if live.rank == 1:
        with torch.no_grad():
            net.first.weight.add_(1)
    step(live, module, optimizer)


def test_a_parameter_that_one_rank_has_changed_is_noticed_before_the_step_makes_it_equal() -> None:
    with pytest.raises(WorkerError, match=r"ReplicaError: before step 2, parameter 'first\.weight'"):
        runtime(check_replicas_every=1).launch(changed_on_one_rank, quiet=True)


class Normed(TwoPlayers):
    """Steps by hand, and has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


def test_buffers_of_a_module_that_steps_by_hand_are_sent_unless_they_are_local(tmp_path: Path) -> None:
    def sent_per_step(**options: Any) -> list[int]:
        strategy = DDPShardedStrategy(start_method="fork", **options)
        steps = traffic_of_fit(Normed(), strategy, tmp_path, max_steps=4)
        return [each["broadcast"] for each in steps[1:]]

    equal, local = sent_per_step(), sent_per_step(buffers="local")
    assert equal == [each + NORM_OF_4_BYTES for each in local]
