"""Buffers become rank 0's where a forward has changed them."""

from __future__ import annotations

import torch
from stratagem_sharding.equal_buffers import EqualBuffers
from torch import nn

from stratagem import Runtime


def changed(runtime):
    net, rank = nn.BatchNorm1d(1), runtime.collectives.rank
    equal = EqualBuffers(net, runtime.collectives.world_size, differ=False)
    seen = []

    def mean_after(training: bool | None) -> None:
        net.running_mean.fill_(float(rank))
        if training is not None:
            equal.note_forward(training)
        equal.make_equal()
        seen.append(net.running_mean.item())

    for training in (None, False, True, None):
        mean_after(training)
    net.running_mean = torch.full((1,), float(rank + 5))  # another tensor than when it was made
    equal.note_forward(True)
    equal.make_equal()
    first = EqualBuffers(net, runtime.collectives.world_size, differ=True)
    net.running_mean.fill_(float(rank))
    first.make_equal()
    return runtime.collectives.gather_objects([*seen, net.running_mean.item()])


def test_ranks_get_the_first_ones_after_a_forward_in_training():
    runtime = Runtime(strategy="ddp", accelerator="cpu", devices=2, strategy_options={"start_method": "fork"})
    assert runtime.launch(changed, quiet=True) == [[0.0] * 5, [1.0, 1.0, 0.0, 1.0, 0.0]]


def test_a_single_rank_sends_nothing():
    equal = EqualBuffers(nn.BatchNorm1d(1), 1, differ=True)
    equal.note_forward(True)
    equal.make_equal()  # there is no process group
