"""Torch still has what the plugin uses of its private names, with the same meaning."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from stratagem_sharded import torch_private as private
from stratagem_sharded.optimizer import ZeroRedundancyOptimizer
from torch import nn


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_groups_that_were_added_are_shared_out():
    one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    zero = ZeroRedundancyOptimizer([one], torch.optim.SGD, lr=0.5)
    zero.param_groups.append({**zero.param_groups[0], "params": [other]})
    groups = private.partition_again(zero)
    assert [group["params"] for group in groups] == [[one], [other]]
    zero.optim.param_groups.extend(groups[1:])
    private.finish_partition(zero)
    one.grad, other.grad = torch.ones(2), torch.ones(3)
    zero.step()
    assert one.tolist() == [0.5] * 2
    assert other.tolist() == [0.5] * 3


def test_hooks_of_one_optimizer_are_called_around_another_ones_step():
    whole, part, stepped = (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0) for _ in range(3))
    called = []
    handle = whole.register_step_pre_hook(lambda optimizer, *_: called.append(("before", optimizer)))
    private.move_step_hooks(whole, part, stepped)
    whole.register_step_post_hook(lambda optimizer, *_: called.append(("after", optimizer)))
    part.step()
    assert called == []
    stepped.step()
    assert called == [("before", stepped), ("after", stepped)]
    handle.remove()
    stepped.step()
    assert len(called) == 3


def test_parameters_are_broadcast_between_steps():
    zero = ZeroRedundancyOptimizer([nn.Parameter(torch.ones(2))], torch.optim.SGD, lr=0.5)
    private.broadcast_parameters(zero)
    assert zero.param_groups[0]["params"][0].tolist() == [1.0, 1.0]
