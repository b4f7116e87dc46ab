"""What fsdp sends between ranks, and what it leaves gathered, call by call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import stratagem_fsdp.gather_order
import torch
from fixed_batches import BATCHES, Fixed, fit
from step_traffic import (
    LAYER_BYTES,
    NORM_BYTES,
    STATISTICS_BYTES,
    DriftsAt,
    Layers,
    gathered,
    inputs,
    sent,
)
from stratagem_fsdp import FSDPStrategy
from torch import Tensor, nn
from torch.nn import functional as F

import stratagem
from stratagem import Runtime
from stratagem.errors import DataError

# Units are the two layers; the norm's parameters are the root's. A scalar has one flag and four bytes of gradient.
GATHERS = {"all_gather": 2 * LAYER_BYTES + NORM_BYTES}
GATHERS_AGAIN = {"all_gather": 2 * LAYER_BYTES}
REDUCES = {"reduce_scatter": 2 * LAYER_BYTES + NORM_BYTES, "all_reduce": 1 + 4}
STATISTICS = {"broadcast": STATISTICS_BYTES}
ROOT = ["norm.weight", "norm.bias"]


def runtime(**options: Any) -> Runtime:
    given = {"start_method": "fork", "auto_wrap_policy": {nn.Linear}, **options}
    return Runtime(
        strategy="fsdp", accelerator="cpu", devices=2, check_replicas_every=0, strategy_options=given
    )


def calls(live: Runtime) -> list[tuple[str, dict[str, int], list[str]]]:
    """Return of each call its name, what it sent, and what it left gathered."""
    net, x, seen, losses = Layers(scalars=True), inputs(live.rank), [], []
    module, optimizer = live.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    (prepared,) = live._prepared

    def call(name: str, function: Any) -> None:
        seen.append((name, sent(function), gathered(net)))

    def forward() -> None:
        losses.append(module(x).square().mean())

    def backward() -> None:
        live.backward(losses.pop())

    call("first forward", forward)
    call("backward", backward)
    optimizer.step()
    call("forward", forward)
    call("backward", backward)
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
    call("evaluation", lambda: prepared.evaluate(x))
    with pytest.raises(RuntimeError):
        prepared.evaluate(x[:, 1:])
    call("evaluation that raised", lambda: None)
    prepared.evaluate(x)
    call("checkpoint", prepared.model_tensors)
    module.eval()
    call("evaluation mode", lambda: prepared.evaluate(x))
    call("checkpoint of unchanged statistics", prepared.model_tensors)
    module.train()
    prepared.evaluate(x)
    call("end", prepared.restore_module)
    net.first.weight.register_post_accumulate_grad_hook(lambda _: None)
    with live.no_sync(module):
        forward()
        call("backward within no_sync with a hook of what is accumulated", backward)
    return seen


def test_what_each_call_sends_and_leaves_gathered() -> None:
    seen = runtime().launch(calls, quiet=True)
    forward = {**STATISTICS, **GATHERS}
    assert seen == [
        ("first forward", GATHERS, ROOT),
        ("backward", {**GATHERS_AGAIN, **REDUCES}, []),
        ("forward", forward, ROOT),
        ("backward", {**GATHERS_AGAIN, **REDUCES}, []),
        ("forward within no_sync", forward, ROOT),
        ("backward within no_sync", GATHERS_AGAIN, []),
        ("forward", forward, ROOT),
        ("backward after no_sync", {**GATHERS_AGAIN, **REDUCES}, []),
        ("forward", forward, ROOT),
        ("backward after no_sync that raised", {**GATHERS_AGAIN, **REDUCES}, []),
        ("forward without gradients", forward, []),
        ("evaluation", forward, []),
        ("evaluation that raised", {}, []),
        ("checkpoint", STATISTICS, []),
        ("evaluation mode", GATHERS, []),
        ("checkpoint of unchanged statistics", {}, []),
        ("end", STATISTICS, []),
        ("backward within no_sync with a hook of what is accumulated", {**GATHERS_AGAIN, **REDUCES}, []),
    ]


def own_statistics(live: Runtime) -> Any:
    net = Layers()
    module = live.setup(net)
    with torch.no_grad():
        traffic = [sent(lambda: module(inputs(live.rank))) for _ in range(2)]
    return traffic, live.collectives.gather_objects(net.norm.running_mean.tolist())


def test_local_buffers_are_not_sent() -> None:
    traffic, (first, second) = runtime(buffers="local").launch(own_statistics, quiet=True)
    assert traffic == [GATHERS, GATHERS]
    assert first != second


def drifted(live: Runtime) -> None:
    net = DriftsAt(forward=18)  # neither among the first 16 nor a power of two, after which all are compared
    module = live.setup(net)
    for _ in range(18):
        module(inputs(live.rank))
    live.save("never written")


def test_a_checkpoint_compares_buffers_whenever_it_is_written() -> None:
    with pytest.raises(
        DataError, match=r"buffer 'seen' differs between ranks 0 and 1.*option buffers='local'"
    ):
        runtime().launch(drifted, quiet=True)


class FewerBlocks(Fixed):
    """Returns its loss after the first block on rank 1, in one step."""

    def loss(self, x: Tensor, y: Tensor, index: int) -> Tensor | None:
        if index == BATCHES // 2 and self.global_rank == 1:
            return F.cross_entropy(self.blocks[0](x), y)
        return super().loss(x, y, index)


class ByHand(Fixed):
    """Runs its own backward, and returns nothing."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


class FewerBlocksByHand(ByHand, FewerBlocks):
    pass


class FewerBlocksAfterTheStep(ByHand):
    """Looks at its outputs again after each step, but once on rank 0 alone."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        if batch_idx != BATCHES // 2 or self.global_rank == 0:
            with torch.no_grad():
                self(torch.ones(1, 6))


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (FewerBlocks, "calls 1 sharded blocks in a step (before: 'blocks.1')"),
        (FewerBlocksByHand, "runs a backward after 1 sharded blocks of a step (before: 'blocks.1')"),
        (FewerBlocksAfterTheStep, "calls 3 sharded blocks in a step (before: 'blocks.0')"),
    ],
)
def test_a_rank_that_calls_fewer_blocks_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cls: type[Fixed], said: str
) -> None:
    monkeypatch.setattr(stratagem_fsdp.gather_order, "WAIT_S", 1.0)
    strategy = FSDPStrategy(start_method="fork", timeout_s=60, auto_wrap_policy=["Block"])
    with pytest.raises(stratagem.StratagemError, match=re.escape(f"rank 1 {said}")):
        fit(cls(), strategy, tmp_path)
