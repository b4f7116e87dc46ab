"""Torch still has what the plugin uses of its private names, with the same meaning."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist
from stratagem_ddp import torch_private as private
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, x: torch.Tensor, both: bool = True) -> torch.Tensor:
        return self.one(x) + (self.other(x) if both else 0)


def test_names_that_are_left_out_get_no_reduction():
    net = Two()
    assert private.left_out(net) == []
    setattr(net, private.LEFT_OUT, ["other.weight"])
    assert private.left_out(net) == ["other.weight"]
    assert len(DistributedDataParallel(net).reducer.get_backward_stats()) == 1
    assert "ignore" not in " ".join(inspect.signature(DistributedDataParallel).parameters), (
        "it has an argument"
    )


def test_a_backward_that_leaves_out_a_parameter_is_reported():
    ddp = DistributedDataParallel(Two())
    ddp(torch.ones(1, 1)).sum().backward()
    private.check_finished(ddp)
    ddp(torch.ones(1, 1), both=False).sum().backward()
    with pytest.raises(RuntimeError, match="did not receive grad for rank 0: 1"):
        private.check_finished(ddp)


def test_gradients_are_marked_ready_and_buckets_arranged():
    ddp = DistributedDataParallel(Two())
    net, reducer = ddp.module, ddp.reducer

    class Mark(torch.autograd.Function):
        @staticmethod
        def forward(ctx, start):
            return start.clone()

        @staticmethod
        def backward(ctx, grad):
            private.mark_ready(ddp, [1, 0])
            return grad

    net.one.weight.grad = torch.full((1, 1), 3.0)
    reducer.prepare_for_backward([])
    Mark.apply(torch.zeros((), requires_grad=True)).backward()
    private.check_finished(ddp)
    assert net.one.weight.grad.item() == 3.0
    private.rebuild_buckets(ddp)


def test_hooks_are_taken_off():
    net = Two()
    ddp = DistributedDataParallel(net)
    private.remove_hooks(ddp)
    again = DistributedDataParallel(net)
    again(torch.ones(1, 1)).sum().backward()
    private.check_finished(again)
    assert not any(ddp.reducer.get_backward_stats())
