"""Torch still has what the plugin uses of its private names, with the same meaning."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist
from stratagem_model_parallel import torch_private as private
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_style_splits_a_module_which_then_tells(mesh):
    layer = nn.Linear(2, 2)
    assert not private.was_distributed(layer)
    private.apply_style(ColwiseParallel(), layer, mesh)
    assert isinstance(layer.weight, DTensor)
    assert private.was_distributed(layer)
    assert isinstance(layer(torch.ones(1, 2)), torch.Tensor)


def test_what_styles_of_ours_override_is_still_what_torch_calls():
    assert list(inspect.signature(ParallelStyle._apply).parameters) == ["self", "module", "device_mesh"]
    assert "._apply(" in inspect.getsource(parallelize_module)
    for style in (ColwiseParallel, RowwiseParallel):
        source = inspect.getsource(style._apply)
        assert "_prepare_input_fn" in source
        assert "_prepare_output_fn" in source


def test_a_tensor_that_was_not_waited_for_is_reported(mesh):
    from torch.distributed._functional_collectives import all_reduce

    reduced = all_reduce(torch.ones(1), "sum", mesh)
    assert private.is_unawaited(reduced)
    reduced.wait()
    assert not private.is_unawaited(torch.ones(1))


def test_attention_tells_how_it_projects():
    assert private.is_packed(nn.MultiheadAttention(4, 2))
    assert not private.is_packed(nn.MultiheadAttention(4, 2, kdim=3))


def test_a_backward_is_detected_while_it_runs():
    reported = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda grad: reported.append(private.is_in_backward()))
    (2 * x).backward()
    assert reported == [True]
    assert not private.is_in_backward()


def test_the_innermost_hooks_of_saved_tensors_are_reported():
    def same(tensor):
        return tensor

    assert private.saved_tensor_hooks() is None
    with torch.autograd.graph.saved_tensors_hooks(same, same):
        outer = private.saved_tensor_hooks()
        assert private.saved_tensor_hooks() == outer
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, same):
            assert private.saved_tensor_hooks() != outer
        assert private.saved_tensor_hooks() == outer


def test_a_hook_knows_whether_its_gradient_is_taken_or_accumulated():
    parameter, said = nn.Parameter(torch.ones(2)), []
    parameter.register_hook(lambda grad: said.append(private.is_taken(parameter)))
    torch.autograd.grad(parameter.sum(), [parameter])
    parameter.sum().backward()
    assert said == [True, False]
