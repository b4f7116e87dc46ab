"""Torch still has what every strategy uses of its private names, with the same meaning."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

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


def test_operations_on_former_meshes_are_forgotten(tmp_path):
    """A mesh that equals a former one has other process groups, and torch's cache has the former mesh."""

    def mesh_of_a_result():
        store = dist.FileStore(str(tmp_path / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        mesh = DeviceMesh("cpu", [0], mesh_dim_names=("tensor",))
        tensor = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
        return mesh, (tensor + tensor).device_mesh

    private.forget_meshes()
    try:
        first, of_result = mesh_of_a_result()
        assert of_result is first
    finally:
        dist.destroy_process_group()
    (tmp_path / "store").unlink()
    private.forget_meshes()
    try:
        second, of_result = mesh_of_a_result()
        assert second == first
        assert of_result is second
    finally:
        dist.destroy_process_group()
