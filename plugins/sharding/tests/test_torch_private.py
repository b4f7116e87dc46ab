"""Torch still has what strategies use of its private names, with the same meaning."""

from __future__ import annotations

import importlib.util
import pickle
import warnings
from contextlib import nullcontext

import pytest
import torch
from stratagem_sharding import torch_private as private
from stratagem_sharding.module_snapshot import ModuleSnapshot
from stratagem_sharding.wrap_policy import recompute_activations
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import CustomPolicy, ModuleWrapPolicy
from torch.distributed.tensor import DTensor


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    net[1].weight = net[0].weight
    net[1].register_parameter("scale", None)
    return net


def test_tables_of_a_module_are_what_it_registers():
    net = tied()
    linear = net[1]
    assert private.own_parameters(linear) == {"weight": net[0].weight, "bias": linear.bias, "scale": None}
    assert set(private.own_buffers(net[2])) == {"running_mean", "running_var", "num_batches_tracked"}
    assert list(private.own_children(net)) == ["0", "1", "2"]
    assert set(private.MODULE_TABLES) <= set(vars(pickle.loads(pickle.dumps(net))))


def test_what_is_written_to_a_table_is_found_by_the_module():
    net = tied()
    plain = torch.ones(2, 2)  # as a part of a parameter is, which isn't a Parameter
    private.own_table(net[0], "weight")["weight"] = plain
    private.own_table(net[2], "running_mean")["running_mean"] = torch.ones(2)
    assert net[0].weight is plain
    assert torch.equal(net[2].running_mean, torch.ones(2))


def test_own_tensors_are_those_that_are_there():
    net = tied()
    assert [name for name, _ in private.own_tensors(net[1])] == ["weight", "bias"]
    assert [name for name, _ in private.own_tensors(net[2])] == [
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]


def test_named_parameters_still_leaves_out_what_the_tables_have():
    linear = tied()[1]
    assert "scale" not in dict(linear.named_parameters(recurse=False)), (
        "it has None now: use it in own_parameters"
    )


def test_hooks_move_with_their_dict_and_handles_still_remove_them():
    one, other = (torch.ones(1, requires_grad=True) for _ in range(2))
    seen: list[str] = []
    handles = [
        one.register_hook(lambda _: seen.append("backward")),
        one.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated")),
    ]
    assert private.backward_hooks(other) is None
    assert private.post_accumulate_hooks(other) is None
    private.set_backward_hooks(other, private.backward_hooks(one))
    private.set_post_accumulate_hooks(other, private.post_accumulate_hooks(one))
    (other * 2).sum().backward()
    assert seen == ["backward", "accumulated"]
    for handle in handles:
        handle.remove()
    (other * 2).sum().backward()
    assert seen == ["backward", "accumulated"]


def test_memory_has_a_number_on_meta_where_it_has_no_address():
    one, other = torch.empty(2, device="meta"), torch.empty(2, device="meta")
    assert one.untyped_storage().data_ptr() == 0, "it has an address now: use that in memory_number"
    assert private.memory_number(one) == private.memory_number(one[:1])
    assert private.memory_number(one) != private.memory_number(other)


def test_an_operation_declares_what_it_writes_to():
    arguments = list(private.declared_arguments(torch.ops.aten.add_.Tensor))
    assert [(each.name, bool(each.alias_info and each.alias_info.is_write)) for each in arguments] == [
        ("self", True),
        ("other", False),
        ("alpha", False),
    ]


def test_a_dispatch_mode_sees_operations():
    seen = []

    class Mode(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.ones(1) + 1
    assert torch.ops.aten.add.Tensor in seen


def test_trees_are_flattened_in_order():
    value = {"a": [torch.ones(1), 2], "b": (3,)}
    leaves, _ = private.tree_flatten(value)
    assert leaves[1:] == [2, 3]
    assert private.tree_map(lambda each: 0, value) == {"a": [0, 0], "b": (0,)}


def test_torch_has_no_public_trees():
    assert importlib.util.find_spec("torch.utils.pytree") is None, (
        "use it in the place of torch.utils._pytree"
    )


def test_initializers_are_replaced_and_put_back():
    before = {name: getattr(nn.init, name) for name in private.INITIALIZERS}
    called = []
    with private.replaced_initializers(lambda original: lambda *args, **_: called.append(original)):
        nn.init.trunc_normal_(torch.empty(1))
        nn.init.orthogonal_(torch.empty(1, 1))
    assert called == [before["_no_grad_trunc_normal_"], before["orthogonal_"]]
    assert {name: getattr(nn.init, name) for name in private.INITIALIZERS} == before


@pytest.mark.parametrize("forgotten", [True, False])
def test_sharding_a_module_twice_is_refused_until_it_is_forgotten(one_rank_mesh, forgotten: bool):
    net = nn.Linear(2, 2)
    snapshot = ModuleSnapshot(net)
    fully_shard(net, mesh=one_rank_mesh)
    snapshot.note()
    snapshot.undo()
    for name, tensor in private.own_tensors(net):
        private.own_table(net, name)[name] = nn.Parameter(tensor.to_local().detach())
    if forgotten:
        private.forget_sharding(net)
    with nullcontext() if forgotten else pytest.raises(AssertionError, match="more than once"):
        fully_shard(net, mesh=one_rank_mesh)
    assert isinstance(net.weight, DTensor) is forgotten


@pytest.fixture
def one_rank_mesh():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_policies_of_torch_name_modules():
    net = tied()
    assert private.modules_by_policy(ModuleWrapPolicy({nn.BatchNorm1d}), net) == [net[2]]
    custom = CustomPolicy(lambda module: isinstance(module, nn.BatchNorm1d))
    assert private.modules_by_policy(custom, net) == [net[2]]
    assert private.modules_by_policy({nn.BatchNorm1d}, net) is None
    assert not callable(custom), "it can be called now: ask it as any function"


def test_the_operators_of_collectives_are_there_and_have_no_kernel_that_watching_would_replace():
    for name in private.COLLECTIVE_OPERATORS:
        operator = getattr(torch.ops.c10d, name).default.name()
        assert torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CPU"), name
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(operator, "AutogradCPU"), name


def test_below_autograd_nothing_is_recorded():
    tensor = torch.ones(3, requires_grad=True)
    with private.below_autograd():
        assert (tensor * 2).grad_fn is None
    assert (tensor * 2).grad_fn is not None


def test_an_optimizer_that_counts_as_stepped_lets_a_scheduler_go_on():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"before `optimizer\.step"):
            torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
        private.count_as_stepped(optimizer)
        scheduler.step()


def test_a_shard_is_reached_without_autograd_and_counts_the_writes_of_what_is_detached(one_rank_mesh):
    tensor = DTensor.from_local(torch.ones(3), one_rank_mesh)
    assert private.local_shard(tensor) is private.local_shard(private.detached(tensor))
    assert private.local_shard(tensor.detach()) is not private.local_shard(tensor), "use DTensor.detach"


def test_a_dtensor_is_made_of_a_shard_elsewhere_than_on_its_mesh(one_rank_mesh):
    shard = torch.empty(3, dtype=torch.float64, device="meta")
    made = private.with_shard(DTensor.from_local(torch.ones(3), one_rank_mesh), shard)
    assert private.local_shard(made) is shard
    assert (made.dtype, made.device_mesh) == (torch.float64, one_rank_mesh)


def test_backwards_have_numbers():
    seen: list[int] = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda _: seen.append(private.backward_number()))
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    assert private.backward_number() == -1
    assert seen[0] != seen[1]
    assert -1 not in seen


def test_what_is_called_at_the_end_of_a_backward_comes_after_hooks_of_reducers():
    seen: list[str] = []
    x = torch.ones(1, requires_grad=True)

    def entered(*_: object) -> None:
        private.at_end_of_backward(lambda: seen.append("ours"))
        torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append("a reducer's"))

    x.register_post_accumulate_grad_hook(entered)
    (x * 2).sum().backward()
    assert seen == ["a reducer's", "ours"], "use a public way, if torch has one now"


def test_step_hooks_are_found():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        assert private.number_of_step_hooks(optimizer) == 0
        handle = register(lambda *_: None)
        assert private.number_of_step_hooks(optimizer) == 1
        handle.remove()


def test_a_transposed_weight_is_a_view_of_it() -> None:
    weight = torch.nn.Parameter(torch.randn(2, 3))
    assert private.view_base(weight.t()) is weight
    assert private.view_base(weight * 1) is None


def test_the_version_is_read_by_a_function_that_subclasses_get() -> None:
    seen = []

    class Watching(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    tensor = torch.zeros(2).as_subclass(Watching)
    seen.clear()
    assert tensor._version == 0
    assert private.GET_VERSION in seen


def test_compiled_modules_are_recognised() -> None:
    layer = nn.Linear(1, 1)
    assert not private.is_compiled(layer)
    assert private.is_compiled(torch.compile(layer, backend="eager"))
    layer.compile(backend="eager")
    assert private.is_compiled(layer)
    other = nn.Linear(1, 1)
    recompute_activations([other])
    assert not private.is_compiled(other)
    other = nn.Linear(1, 1)
    other.forward = torch.compile(other.forward, backend="eager")  # type: ignore[method-assign]  # as users do
    assert private.is_compiled(other)
    recompute_activations([other])
    assert private.is_compiled(other)


def test_the_dimensions_that_an_operation_got():
    aten, x = torch.ops.aten, torch.ones(2, 3)
    assert private.dims_of(aten.mean.dim, (x, [1]), {}) == [1]
    assert private.dims_of(aten.max.dim, (x, -1), {}) == [-1]
    assert private.dims_of(aten.sum.dim_IntList, (x,), {"dim": [0, 1]}) == [0, 1]
    assert private.dims_of(aten.linalg_vector_norm.default, (x,), {}) == []
