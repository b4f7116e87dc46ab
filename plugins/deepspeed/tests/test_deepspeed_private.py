"""DeepSpeed and torch still have what the plugin uses of their private names, with the same meaning."""

from __future__ import annotations

import ast
import importlib
import inspect
from types import ModuleType

import pytest
import torch
from stratagem_deepspeed import deepspeed_private as private
from stratagem_deepspeed.library import load
from torch import nn


@pytest.fixture(scope="module", autouse=True)
def engine() -> ModuleType:
    return load("cpu")


def source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


@pytest.mark.parametrize(
    ("module", "owner", "method"), private.REPLACED, ids=lambda each: each.split(".")[-1]
)
def test_methods_that_are_replaced_take_the_same(module: str, owner: str, method: str):
    # Not by inspect: some of the engine's decorators hide the arguments.
    classes = {each.name: each for each in ast.parse(source(module)).body if isinstance(each, ast.ClassDef)}
    methods = {each.name: each for each in classes[owner].body if isinstance(each, ast.FunctionDef)}
    _, *arguments = (each.arg for each in methods[method].args.args)
    assert tuple(arguments) == private.REPLACED[module, owner, method]


def test_a_replaced_method_is_put_back():
    class Owner:
        def step(self) -> str:
            return "own"

    owner = Owner()
    original = private.replace(owner, "step", lambda: "ours")
    assert (owner.step(), original()) == ("ours", "own")
    private.restore(owner, "step")
    assert owner.step() == "own"


def test_stages_1_and_2_say_where_a_parameter_is():
    assert "lp_param._hp_mapping = " in source("deepspeed.utils.mixed_precision_linkage")
    fields = inspect.getsource(importlib.import_module("deepspeed.utils.tensor_fragment").fragment_address)
    assert all(name in fields for name in ("numel", "start"))
    assert private.fragment_of(nn.Parameter(torch.ones(1))) is None


def test_stage_3_says_which_optimizer_steps_a_parameter():
    assert "._z3_optimizer = self" in source("deepspeed.runtime.zero.stage3")


def test_what_is_kept_of_a_process_group_is_dropped():
    groups = importlib.import_module("deepspeed.utils.groups")
    comm = importlib.import_module("deepspeed.comm.comm")
    assert list(inspect.signature(groups._release_process_group_references).parameters) == ["group"]
    destroy = inspect.getsource(comm.destroy_process_group)
    assert "_release_process_group_references" in destroy
    assert "global cdb" in destroy
    private.forget_process_groups()
    assert comm.cdb is None


def test_parameters_are_counted_on_the_class():
    from deepspeed import zero

    before = zero.Init.param_id
    private.number_parameters_from(before + 5)
    assert zero.Init.param_id == before + 5
    assert "Init.param_id" in inspect.getsource(importlib.import_module(zero.Init.__module__))
    private.number_parameters_from(before)


def test_destroy_still_leaves_the_module_on_the_engine():
    from deepspeed.runtime.engine import DeepSpeedEngine

    assert "_modules" not in inspect.getsource(DeepSpeedEngine.destroy), (
        "it takes it off now: leave it to destroy"
    )
    net = nn.Sequential(nn.Linear(1, 1))
    private.forget_children(net)
    assert not list(net.children())


def test_a_module_leaves_the_stack_of_forwards():
    from deepspeed.runtime.zero import parameter_offload

    source = inspect.getsource(parameter_offload.DeepSpeedZeRoOffload)
    assert "FWD_MODULE_STACK.append(self.module)" in source, "leave it to destroy"
    ours, theirs = nn.Sequential(nn.Linear(1, 1)), nn.Linear(1, 1)
    stack = parameter_offload.FWD_MODULE_STACK
    before = list(stack)
    stack += [theirs, ours, ours[0]]
    private.leave_forward_stack(ours)
    assert stack == [*before, theirs]
    stack.remove(theirs)


def test_a_plain_table_takes_the_place_of_the_engines():
    class Table(dict):
        pass

    net = nn.Linear(1, 1)
    weight = net.weight
    net._parameters = Table(net._parameters)
    private.use_plain_dict(net)
    assert type(net._parameters) is dict
    assert net.weight is weight


def test_marks_are_what_the_engine_leaves_on_modules():
    text = "".join(
        source(f"deepspeed.runtime.zero.{name}")
        for name in ("partition_parameters", "parameter_offload", "partitioned_param_coordinator")
    )
    assert all(mark in text for mark in ("ds_", "_external_params", "_deepspeed", "pre_bwd", "post_bwd"))


def test_the_contexts_of_users_are_still_counted_on_parameters():
    text = source("deepspeed.runtime.zero.partition_parameters")
    assert '"_ds_z3_gathered_param_context_depth"' in text
    parameter = nn.Parameter(torch.ones(1))
    assert not private.is_gathered_by_user(parameter)
    parameter._ds_z3_gathered_param_context_depth = 1
    assert private.is_gathered_by_user(parameter)


def test_parameters_of_other_modules_are_still_noted_on_the_callers():
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK

    caller, other = nn.Linear(1, 1), nn.Linear(1, 1)
    assert "_external_params[key]" in source("deepspeed.runtime.zero.partition_parameters")
    caller._external_params = {id(other.weight): other.weight}
    assert not private.is_used_by_caller(other.weight)
    FWD_MODULE_STACK.append(caller)
    try:
        assert private.is_used_by_caller(other.weight)
        assert not private.is_used_by_caller(other.bias)
    finally:
        FWD_MODULE_STACK.pop()


def test_torch_still_finds_an_accumulation_by_viewing_a_tensor_as_itself():
    from torch.autograd import graph

    assert "t.view_as(t)" in inspect.getsource(graph._get_grad_fn_or_grad_acc)
    parameter = nn.Parameter(torch.ones(1))
    assert private.finds_accumulation(torch.Tensor.view_as, (parameter, parameter))
    assert not private.finds_accumulation(torch.Tensor.view_as, (parameter, torch.ones(1)))
    assert all(hasattr(torch.Tensor, name) for name in private.WITHOUT_VALUES)
