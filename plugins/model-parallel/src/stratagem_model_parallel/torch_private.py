"""Private names of torch that this plugin uses, in addition to those in `stratagem_sharding.torch_private`.

Each has its reason.

plugins/model-parallel/tests/test_torch_private.py fails when torch changes one, or offers a public API. This plugin's
styles derive from torch's `ParallelStyle`, whose one method to override is called `_apply`; they also call
`super()._apply` and `self._prepare_output_fn`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle


def apply_style(style: ParallelStyle, module: nn.Module, mesh: DeviceMesh) -> None:
    """Split a module by a style. Torch only calls `_apply` from `parallelize_module`."""
    style._apply(module, mesh)


def is_unawaited(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an asynchronous collective's result that hasn't been awaited. Its class isn't public."""
    return isinstance(tensor, AsyncCollectiveTensor)


def was_distributed(module: nn.Module) -> bool:
    """Whether `distribute_module` was applied to a module. It refuses a second time."""
    return hasattr(module, "_distribute_module_applied")


def is_packed(attention: nn.MultiheadAttention) -> bool:
    """Whether queries, keys and values are projected by one weight, `in_proj_weight`."""
    return bool(attention._qkv_same_embed_dim)


def is_in_backward() -> bool:
    """Whether this thread runs a backward, as while activations are recomputed."""
    return bool(torch._C._current_graph_task_id() != -1)


def saved_tensor_hooks() -> object:
    """Return autograd's innermost `saved_tensors_hooks`; None if there are none.

    Nothing else tells in which activation checkpoint a module is called.
    """
    hooks: object = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks


def is_taken(parameter: torch.Tensor) -> bool:
    """Whether a leaf's gradient, as its hook gets it, is returned by `torch.autograd.grad`, not accumulated.

    Call it only during a backward. There is no public name for it in torch.autograd.graph.
    """
    accumulating = torch.autograd.graph.get_gradient_edge(parameter).node
    try:
        return not torch._C._will_engine_execute_node(accumulating)
    except RuntimeError:  # torch raises for a leaf that torch.autograd.grad was asked for
        return True
