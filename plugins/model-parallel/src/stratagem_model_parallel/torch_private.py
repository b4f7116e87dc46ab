"""What this plugin uses of torch that torch keeps private in addition to that of `stratagem_sharding.torch_private`.

All of it, each with the reason.

plugins/model-parallel/tests/test_torch_private.py fails when torch changes one, or has a public way. Styles of ours
are torch's `ParallelStyle`s, whose one method to override is called `_apply`; `super()._apply` and
`self._prepare_output_fn` are theirs.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle


def apply_style(style: ParallelStyle, module: nn.Module, mesh: DeviceMesh) -> None:
    """Split a module by a style, whose one method torch keeps to `parallelize_module`."""
    style._apply(module, mesh)


def is_unawaited(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a collective's that no one has waited for; torch exports no name for these."""
    return isinstance(tensor, AsyncCollectiveTensor)


def was_distributed(module: nn.Module) -> bool:
    """Whether `distribute_module` was applied to it, which refuses a second time."""
    return hasattr(module, "_distribute_module_applied")


def is_packed(attention: nn.MultiheadAttention) -> bool:
    """Whether queries, keys and values are projected by one weight, `in_proj_weight`."""
    return bool(attention._qkv_same_embed_dim)


def is_in_backward() -> bool:
    """Whether a backward is running on this thread, as while activations are computed again."""
    return bool(torch._C._current_graph_task_id() != -1)


def saved_tensor_hooks() -> object:
    """What autograd calls now for tensors that it saves: the innermost `saved_tensors_hooks`, None for none.

    Nothing else says in which checkpoint a module is called.
    """
    hooks: object = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks


def is_taken(parameter: torch.Tensor) -> bool:
    """Whether the gradient that a hook of a leaf gets is returned by `torch.autograd.grad`, and not accumulated.

    Only while autograd computes. torch.autograd.graph has no name for it.
    """
    accumulating = torch.autograd.graph.get_gradient_edge(parameter).node
    try:
        return not torch._C._will_engine_execute_node(accumulating)
    except RuntimeError:  # it asks not to be called about a leaf of torch.autograd.grad
        return True
