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
