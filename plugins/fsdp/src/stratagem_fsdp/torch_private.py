"""Private names of torch that this plugin uses, in addition to those in `stratagem_sharding.torch_private`.

Each has its reason.

plugins/fsdp/tests/test_torch_private.py fails when torch changes one, or offers a public API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from stratagem.sdk.torch_private import without_subclass_functions


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, and any other tensor itself.

    `DTensor.to_local` goes through autograd, and takes 20 times as long.
    """
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def is_in_backward() -> bool:
    """Whether this thread runs a backward, as while activations are recomputed.

    fully_shard itself uses `torch._C._current_graph_task_id`; there is no public name for it.
    """
    return torch._C._current_graph_task_id() != -1


def reduced_groups(unit: Any) -> list[Any]:
    """Return a unit's groups of parameters. The gradients of a group are reduced in one message.

    Their `post_backward`, `fsdp_params` and `reduce_grads` are private, too: there is no public hook between
    the gradients and their reduction. Torch 2.9 has one group per unit.
    """
    state = unit._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def managed_parameters(unit: Any) -> list[Any]:
    """Return the sharded parameters of a unit's groups, which its modules have while they aren't gathered."""
    return [each.sharded_param for group in reduced_groups(unit) for each in group.fsdp_params]


def has_gradient(parameter: Any) -> bool:
    """Whether one of a group's `fsdp_params` has an unreduced gradient, of this backward or of earlier ones."""
    # Torch creates the gathered parameter at the first gather.
    if not hasattr(parameter, "_unsharded_param"):
        return False
    # Under model_parallel, `.grad` of the gathered copy is intercepted and would call this function again.
    with without_subclass_functions():
        return parameter.unsharded_accumulated_grad is not None or parameter._unsharded_param.grad is not None


def gathered_gradients(parameter: Any) -> list[torch.Tensor]:
    """Return the unreduced gradients of one of a group's `fsdp_params`: those of its gathered copy."""
    return [
        each
        for each in (parameter.unsharded_accumulated_grad, parameter._unsharded_param.grad)
        if each is not None
    ]


def drop_gradient(parameter: Any) -> None:
    """Drop the gradients that `gathered_gradients` returns."""
    parameter.unsharded_accumulated_grad = None
    parameter._unsharded_param.grad = None


def has_run(root: Any) -> bool:
    """Whether a root's forward has ever begun. Before, `reset_iter_state` fails, since torch initializes lazily."""
    return root._get_fsdp_state()._is_root is not None


def has_unfinished_backward(unit: Any) -> bool:
    """Whether a backward has begun and not ended: it is running, or it has raised.

    Torch queues the end of a backward only if this flag is unset, and doesn't reset it after an exception.
    """
    return bool(unit._get_fsdp_state()._state_ctx.post_backward_final_callback_queued)


def end_backward(root: Any) -> None:
    """Do what `fully_shard` does at the end of a backward: reduce the gradients that units have kept. Collective."""
    root._get_fsdp_state()._root_post_backward_final_callback()


def joined_mesh(mesh: DeviceMesh, dims: Sequence[Sequence[str]]) -> DeviceMesh:
    """Return a submesh with one dimension for each group of names. Collective at the first call.

    `_flatten` and `_concatenate` have no public names. A new mesh of the same ranks would have another root mesh,
    which `fully_shard` refuses for parameters that are split along further dimensions.

    Args:
        mesh: has names of its dimensions.
        dims: for each new dimension, the names that it joins; they must be adjacent in the mesh.
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
    """Whether autograd treats a tensor as a view. `Tensor._base`, the only other name for that, is private, too."""
    return tensor._is_view()
