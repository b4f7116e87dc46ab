"""Torch still has what precisions use of its private names, with the same meaning."""

from __future__ import annotations

import inspect
import warnings

import torch
from torch import nn

from stratagem.precision import torch_private as private


def test_apply_reaches_parameters_gradients_and_buffers():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net(torch.ones(2, 2)).sum().backward()
    private.apply_to_tensors(net, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    tensors = [*net.parameters(), *(p.grad for p in net.parameters()), *net.buffers()]
    assert {tensor.dtype for tensor in tensors} == {torch.float64, torch.int64}
    assert isinstance(net[0].weight, nn.Parameter)


def test_it_is_what_to_is_made_of_and_what_recurrent_modules_extend():
    assert "self._apply(" in inspect.getsource(nn.Module.to)
    assert "_apply" in vars(nn.RNNBase)


def test_to_still_drops_the_imaginary_part():
    net = nn.ParameterDict({"z": nn.Parameter(torch.ones(1, dtype=torch.complex64))})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Casting complex")
        net.to(torch.bfloat16)
    assert not net["z"].is_complex(), "Module.to leaves it alone: use that"


def test_the_scaler_still_copies_the_scale_without_waiting():
    names = ["self", "optimizer", "inv_scale", "found_inf", "allow_fp16"]
    assert list(inspect.signature(torch.amp.GradScaler._unscale_grads_).parameters) == names
    assert "self._unscale_grads_(" in inspect.getsource(torch.amp.GradScaler.unscale_)
    copies = inspect.getsource(torch.amp.grad_scaler._MultiDeviceReplicator.get)
    assert "non_blocking=True" in copies, "it waits now: take GradientScaler._unscale_grads_ away"


def test_the_scaler_tells_of_overflows_and_is_asked_again():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = private.GradientScaler("cpu")
    assert not scaler.has_scaled
    scaler.scale(parameter.sum()).backward()
    assert scaler.has_scaled
    parameter.grad[0] = float("inf")
    scaler.unscale_(optimizer)
    assert [found.item() for found in scaler.overflows(optimizer)] == [1.0]
    scaler.forget(optimizer)
    parameter.grad.fill_(1.0)
    scaler.unscale_(optimizer)
    assert [found.item() for found in scaler.overflows(optimizer)] == [0.0]
