"""Private names of DeepSpeed and torch that this plugin uses, and the engine's methods that it replaces.

Each has its reason. Private names of torch that several plugins use are in `stratagem_sharding.torch_private`.
plugins/deepspeed/tests/test_deepspeed_private.py fails when DeepSpeed or torch changes one, or offers a public API.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

REDUCE, COMPLETE = "reduce_ready_partitions_and_remove_grads", "independent_gradient_partition_epilogue"
STEP_GROUP = "_optimizer_step"
PROLOGUE, OUTPUT_PROLOGUE = "_backward_prologue", "_backward_prologue_per_tensor"
REDUCE_ALL, UPDATE_HALVES = "buffered_allreduce_fallback", "update_lp_params"
REPLACED = {
    ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", REDUCE): ("param", "i"),
    ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", COMPLETE): (),
    ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", STEP_GROUP): ("group_no",),
    ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3", REDUCE): ("param",),
    ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3", COMPLETE): (),
    ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3", STEP_GROUP): ("sub_group_id",),
    ("deepspeed.runtime.bf16_optimizer", "BF16_Optimizer", UPDATE_HALVES): (),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", PROLOGUE): (),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", OUTPUT_PROLOGUE): ("grad",),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", REDUCE_ALL): ("grads", "elements_per_buffer"),
}
"""Methods of the engine that are replaced on its instances: (module, class, method) → names of arguments.

The engine has no hook between gradients that arrive, their reduction and the step."""
MARKS = ("ds_", "_ds_", "_deepspeed", "_external", "pre_bwd", "post_bwd")
"""Prefixes of the attributes that the engine leaves on modules. It has no method to remove them."""
WITHOUT_VALUES = ("_backward_hooks", "_post_accumulate_grad_hooks", "_version")
"""Attributes of a tensor that are the same whether it is empty or whole."""


def runs_own_backward(engine: Any) -> bool:
    """Whether the current backward is `engine.backward`, not `Tensor.backward`. There is no public name for it."""
    return bool(engine._running_engine_backward)


def replace(owner: Any, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Replace one of the methods in `REPLACED` on an instance; return the original method."""
    original: Callable[..., Any] = getattr(owner, name)
    # patch: engine methods
    setattr(owner, name, method)
    return original


def restore(owner: Any, *names: str) -> None:
    """Undo `replace`: the instance uses its class's methods again."""
    for name in names:
        delattr(owner, name)


def fragment_of(parameter: nn.Parameter) -> Any | None:
    """Return a parameter's `start` and `numel` in its flat tensor of stage 1 or 2; None where this rank has no part.

    The public `deepspeed.utils.safe_get_full_fp32_param` gathers the full parameter; no public name gives the range.
    """
    mapping = getattr(parameter, "_hp_mapping", None)
    return None if mapping is None else mapping.hp_fragment_address


def stage3_of(parameter: nn.Parameter) -> Any:
    """Return the optimizer of stage 3 that steps a parameter; public functions only read and write whole tensors."""
    return parameter._z3_optimizer  # type: ignore[attr-defined]  # the engine sets it


def forget_process_groups() -> None:
    """Drop DeepSpeed's references to a process group that has been closed.

    `deepspeed.comm.destroy_process_group` would also destroy torch's process group, which DeepSpeed doesn't own here.
    """
    import deepspeed.comm.comm
    from deepspeed.utils import groups

    groups._release_process_group_references()
    # patch: engine state
    deepspeed.comm.comm.cdb = None


def number_parameters_from(number: int) -> None:
    """Set the number of the next parameter. Ranks compare the numbers, and one rank may have had an engine before."""
    from deepspeed import zero

    # patch: engine state
    zero.Init.param_id = number


def forget_children(engine: nn.Module) -> None:
    """Remove the user's module from an engine, since `destroy` doesn't: the engine would keep its memory alive."""
    engine._modules.clear()


def leave_forward_stack(module: nn.Module) -> None:
    """Remove a module from ZeRO stage 3's global stack of running forwards, which otherwise keeps it for ever."""
    from deepspeed.runtime.zero import parameter_offload

    own = set(map(id, module.modules()))
    stack = parameter_offload.FWD_MODULE_STACK
    stack[:] = [each for each in stack if id(each) not in own]


def use_plain_dict(module: nn.Module) -> None:
    """Give a module an ordinary dict of parameters: the engine's replacement gathers each parameter on access."""
    if type(module._parameters) is not dict:
        # patch: engine state
        module.__dict__["_parameters"] = dict(module._parameters.items())


def as_plain_tensors() -> AbstractContextManager[Any]:
    """Return a context in which torch ignores `__torch_function__` of tensor subclasses."""
    context: AbstractContextManager[Any] = torch._C.DisableTorchFunctionSubclass()
    return context


def is_gathered_by_user(parameter: Any) -> bool:
    """Whether a parameter is within a `GatheredParameters` context. There is no public name for it."""
    return bool(getattr(parameter, "_ds_z3_gathered_param_context_depth", 0))


def finds_accumulation(func: Any, args: Any) -> bool:
    """Whether a call is `p.view_as(p)`, from torch's `_get_grad_fn_or_grad_acc`; the engine counts gradients so."""
    return func == torch.Tensor.view_as and args[0] is args[1]


def is_used_by_caller(parameter: Any) -> bool:
    """Whether a module in its forward uses this parameter of another module, which the engine gathers for it."""
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK

    return any(id(parameter) in getattr(module, "_external_params", ()) for module in FWD_MODULE_STACK)
