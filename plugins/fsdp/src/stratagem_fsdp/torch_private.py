"""What this plugin uses of torch that torch keeps private in addition to that of `stratagem_sharding.torch_private`.

All of it, each with the reason.

plugins/fsdp/tests/test_torch_private.py fails when torch changes one, or has a public way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from stratagem.sdk.torch_private import without_subclass_functions


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, and any other tensor as it is.

    `DTensor.to_local` goes through autograd, and takes 20 times as long.
    """
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def is_in_backward() -> bool:
    """Whether autograd is at work in this thread, as while activations are computed again.

    `torch._C._current_graph_task_id` is what fully_shard itself uses; it has no public name.
    """
    return torch._C._current_graph_task_id() != -1


def reduced_groups(unit: Any) -> list[Any]:
    """Return the groups of a unit's parameters whose gradients are reduced in one message.

    Their `post_backward`, `fsdp_params` and `reduce_grads` are torch's own, too: nothing public comes between
    the gradients and their reduction. torch 2.9 has one group for a unit.
    """
    state = unit._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def managed_parameters(unit: Any) -> list[Any]:
    """Return the sharded parameters of a unit's groups, as its modules have them while they aren't gathered."""
    return [each.sharded_param for group in reduced_groups(unit) for each in group.fsdp_params]


def has_gradient(parameter: Any) -> bool:
    """Whether one of a group's `fsdp_params` has a gradient to be reduced, of this backward or of earlier ones."""
    # Torch makes the whole parameter when it is gathered for the first time.
    if not hasattr(parameter, "_unsharded_param"):
        return False
    # Under model_parallel the gathered copy is a whole tensor, too, whose `.grad` would ask for this again.
    with without_subclass_functions():
        return parameter.unsharded_accumulated_grad is not None or parameter._unsharded_param.grad is not None


def gathered_gradients(parameter: Any) -> list[torch.Tensor]:
    """Return the gradients of one of a group's `fsdp_params` that aren't reduced: of its gathered copy."""
    return [
        each
        for each in (parameter.unsharded_accumulated_grad, parameter._unsharded_param.grad)
        if each is not None
    ]


def drop_gradient(parameter: Any) -> None:
    """Drop what `gathered_gradients` returns."""
    parameter.unsharded_accumulated_grad = None
    parameter._unsharded_param.grad = None


def has_run(root: Any) -> bool:
    """Whether a root's forward has begun once: before that, `reset_iter_state` fails for what torch hasn't made."""
    return root._get_fsdp_state()._is_root is not None


def has_unfinished_backward(unit: Any) -> bool:
    """Whether a backward has begun and not come to its end: it runs, or it has raised.

    torch counts on this flag to queue the end of a backward, and never resets it after an exception.
    """
    return bool(unit._get_fsdp_state()._state_ctx.post_backward_final_callback_queued)


def end_backward(root: Any) -> None:
    """Do what `fully_shard` does at the end of a backward: reduce the gradients that units have kept. Collective."""
    root._get_fsdp_state()._root_post_backward_final_callback()


def joined_mesh(mesh: DeviceMesh, dims: Sequence[Sequence[str]]) -> DeviceMesh:
    """Return a part of a mesh with one dimension for each group of names. Collective at the first call.

    torch names neither `_flatten` nor `_concatenate` in public; another mesh of the same ranks would have another
    root, which `fully_shard` refuses for parameters that are split along further dimensions.

    Args:
        mesh: with names.
        dims: the names that are one dimension, which follow one another in the mesh.
    """
    if all(len(names) == 1 for names in dims):
        return mesh[tuple(names[0] for names in dims)]
    parts = [
        mesh[tuple(names)]._flatten("_".join(names)) if len(names) > 1 else mesh[names[0]] for names in dims
    ]
    if len(parts) == 1:
        return parts[0]
    if not hasattr(DeviceMesh, "_concatenate"):  # torch 2.9
        return mesh[tuple("_".join(names) for names in dims)]
    return DeviceMesh._concatenate(parts)


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd has it as a view of another; `Tensor._base` is the only other name for that."""
    return tensor._is_view()
