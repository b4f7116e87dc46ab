"""torch_xla and torch still have what the plugin uses of their private names, with the same meaning."""

from __future__ import annotations

import inspect

import pytest
import torch
from stratagem_xla import xla_private as private
from stratagem_xla.library import load
from torch import nn


@pytest.fixture(scope="module", autouse=True)
def library():
    return load()


def wrapper_class():
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    return XlaFullyShardedDataParallel


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("_rebuild_full_params", ["dependency_tensors", "apply_opt_barrier"]),
        ("_free_full_params", ["params", "dependency_tensors", "apply_opt_barrier"]),
        ("assert_state", ["state"]),
        ("_register_post_backward_hooks", []),
    ],
)
def test_methods_of_the_wrapper_take_the_same(method: str, arguments: list[str]):
    _, *found = inspect.signature(getattr(wrapper_class(), method)).parameters
    assert found == arguments
    assert method in private.REPLACED or not arguments


def test_the_wrapper_has_what_is_asked_of_it():
    assert next(iter(private.NO_PATCHED_LINEAR)) in inspect.signature(wrapper_class().__init__).parameters
    source = inspect.getsource(inspect.getmodule(wrapper_class()))
    assert all(
        f".{name} = " in source for name in ("_has_full_param", "_orig_size", "_dummy_data_placeholder")
    )
    assert "torch_xla._XLAC._replace_xla_tensor(" in source


def test_linears_are_patched_under_the_names_that_are_taken_off():
    from torch_xla.distributed.fsdp import utils

    source = inspect.getsource(utils)
    forward, original = private.PATCHED
    assert f'(m, "{forward}")' in source
    assert f"m.{original} = forward_method" in source


def test_numbers_tell_of_writes():
    tensor = torch.zeros(2, device="xla")
    before = private.numbers_of(tensor)
    assert private.numbers_of(tensor) == before
    tensor.data.copy_(torch.ones(2))
    assert private.numbers_of(tensor) != before


def test_a_tensor_without_a_layout_has_no_spec():
    assert private.sharding_spec(torch.zeros(2, device="xla")) == ""


def test_backward_hooks_of_a_module():
    net = nn.Linear(1, 1)
    handle = net.register_full_backward_hook(lambda *_: None)
    assert list(private.module_hooks(net)) == [handle.id]
