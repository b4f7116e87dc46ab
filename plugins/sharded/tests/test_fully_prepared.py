"""What ddp_fully_sharded sends between ranks, and what it leaves gathered, call by call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import Line
from step_traffic import (
    LAYER_BYTES,
    NORM_BYTES,
    STATISTICS_BYTES,
    DriftsAt,
    Layers,
    gathered,
    inputs,
    sent,
    traffic_of_fit,
)
from stratagem_sharded import DDPFullyShardedStrategy

from stratagem import Runtime
from stratagem.errors import DataError

STATISTICS = {"broadcast": STATISTICS_BYTES}
GATHERS = {"all_gather": 2 * LAYER_BYTES + NORM_BYTES}
REDUCES = {"reduce_scatter": 2 * LAYER_BYTES + NORM_BYTES}
ALL = 6
"""Number of parameters of `Layers`."""


def runtime(**options: Any) -> Runtime:
    given = {"start_method": "fork", "blocks": ["Linear"], **options}
    return Runtime(
        strategy="ddp_fully_sharded",
        accelerator="cpu",
        devices=2,
        check_replicas_every=0,
        strategy_options=given,
    )


def calls(live: Runtime) -> list[tuple[str, dict[str, int], int]]:
    """Return of each call its name, what it sent, and how many parameters it left gathered."""
    net, x, seen, losses = Layers(), inputs(live.rank), [], []
    module, optimizer = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    (prepared,) = live._prepared

    def call(name: str, function: Any) -> None:
        seen.append((name, sent(function), len(gathered(net))))

    def forward() -> None:
        losses.append(module(x).square().mean())

    def backward() -> None:
        live.backward(losses.pop())

    def evaluate() -> None:
        with prepared.evaluating():
            pass

    call("forward", forward)
    call("backward", backward)
    optimizer.step()
    with live.no_sync(module):
        call("forward within no_sync", forward)
        call("backward within no_sync", backward)
    call("forward", forward)
    call("backward after no_sync", backward)
    with pytest.raises(ArithmeticError), live.no_sync(module):
        raise ArithmeticError
    call("forward", forward)
    call("backward after no_sync that raised", backward)
    with torch.no_grad():
        call("forward without gradients", lambda: module(x))
    call("checkpoint", prepared.model_tensors)
    call("evaluation begins", evaluate)
    call("end", prepared.restore_module)
    net.first.weight.register_post_accumulate_grad_hook(lambda _: None)
    with live.no_sync(module):
        forward()
        call("backward within no_sync with a hook of what is accumulated", backward)
    return seen


@pytest.mark.parametrize("each", [True, False])
def test_what_each_call_sends_and_leaves_gathered(each: bool) -> None:
    forward = {**STATISTICS, **GATHERS}
    assert runtime(reduce_each_micro_batch=each).launch(calls, quiet=True) == [
        ("forward", forward, ALL),
        ("backward", REDUCES, 0),
        ("forward within no_sync", forward, ALL),
        # Your own loop may look for gradients here, which shards have.
        ("backward within no_sync", REDUCES if each else {}, 0),
        ("forward", forward, ALL),
        ("backward after no_sync", REDUCES, 0),
        ("forward", forward, ALL),
        ("backward after no_sync that raised", REDUCES, 0),
        ("forward without gradients", GATHERS, 0),
        ("checkpoint", STATISTICS, 0),
        ("evaluation begins", STATISTICS, 0),
        ("end", STATISTICS, 0),
        ("backward within no_sync with a hook of what is accumulated", REDUCES, 0),
    ]


@pytest.mark.parametrize("each", [True, False])
def test_the_trainer_gathers_once_for_all_micro_batches_of_a_step(tmp_path: Path, each: bool) -> None:
    strategy = DDPFullyShardedStrategy(start_method="fork", blocks=[], reduce_each_micro_batch=each)
    steps = traffic_of_fit(Line(), strategy, tmp_path, accumulate_grad_batches=3, max_steps=2)
    size_bytes = 4 * (2 * 4 + 2)  # a row of four weights and a bias, padded to a row for each rank
    expected = (size_bytes, (3 if each else 1) * size_bytes)
    assert [(step["all_gather"], step["reduce_scatter"]) for step in steps] == [expected, expected]


def start(live: Runtime) -> Any:
    net = Layers()
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor += live.rank
    live.setup(net)
    begins = {name: value.full_tensor().tolist() for name, value in net.named_parameters()}
    begins.update({name: value.tolist() for name, value in net.named_buffers()})
    return live.collectives.gather_objects(begins)


def test_all_ranks_begin_with_what_rank_0_has() -> None:
    first, second = runtime().launch(start, quiet=True)
    expected = {name: value.tolist() for name, value in Layers().state_dict().items()}
    assert first == second == expected


def drifted(live: Runtime, path: str) -> Any:
    net = DriftsAt(forward=18)  # neither among the first 16 nor a power of two, after which all are compared
    module = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))[0]
    traffic = [sent(lambda: module(inputs(live.rank))) for _ in range(18)]
    live.save(path)
    return traffic[-1], live.collectives.gather_objects(net.seen.item())


def test_a_checkpoint_compares_buffers_whenever_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"buffer 'seen' differs between ranks 0 and 1.*option buffers='local'"
    ):
        runtime().launch(drifted, str(tmp_path / "c"), quiet=True)


@pytest.mark.parametrize("options", [{"buffers": "local"}, {"broadcast_buffers": False}])
def test_local_buffers_are_neither_sent_nor_compared(tmp_path: Path, options: dict[str, Any]) -> None:
    traffic, seen = runtime(**options).launch(drifted, str(tmp_path / "c"), quiet=True)
    assert "broadcast" not in traffic
    assert seen == [17, 18]
