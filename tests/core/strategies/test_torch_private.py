"""Torch still has what every strategy uses of its private names, with the same meaning."""

import torch
from torch import nn

from stratagem.strategies import torch_private as private


def test_version_counts_writes_in_place_and_through_views():
    tensor = torch.zeros(3)
    before = private.tensor_version(tensor)
    tensor.add_(1)
    tensor[:1].mul_(2)
    assert private.tensor_version(tensor) == before + 2


def test_parameter_hooks_name_both_slots():
    parameter = nn.Parameter(torch.ones(1))
    parameter.register_hook(lambda _: None)
    parameter.register_post_accumulate_grad_hook(lambda _: None)
    assert all(len(getattr(parameter, slot)) == 1 for slot in private.PARAMETER_HOOKS)


def test_subclasses_are_not_asked_about_functions():
    class Asked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    with private.without_subclass_functions():
        assert torch.ones(2).as_subclass(Asked).add(1).shape == (2,)


def test_operations_and_attributes_of_tensors_have_names():
    seen: list[str] = []

    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(private.operation_name(func))
            with private.without_subclass_functions():
                return func(*args, **(kwargs or {}))

    named = torch.ones(2).as_subclass(Named)
    _ = named.add(1), named.shape
    named.requires_grad = True
    assert seen == ["add", "get shape", "set requires_grad"]


def test_tensors_of_any_kind_are_multiplied_in_place():
    tensors = [torch.ones(2), torch.ones(3, dtype=torch.float64), torch.ones(1, dtype=torch.complex64)]
    tensors.append(torch.ones(2, 2).to_sparse())
    private.multiply_(tensors, torch.tensor(0.5, dtype=torch.float64))
    assert all(bool((tensor.to_dense() == 0.5).all()) for tensor in tensors)
