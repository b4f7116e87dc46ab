"""What this plugin uses of DeepSpeed and torch that they keep private, and which of the engine's methods it replaces.

Each with the reason; what several plugins use of torch is in `stratagem_sharding.torch_private`.
plugins/deepspeed/tests/test_deepspeed_private.py fails when DeepSpeed or torch changes one, or has a public way.
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
"""The engine's methods that objects of it get another in the place of, by module and class, with their arguments.

The engine has no hook between gradients that arrive, their reduction and the step."""
MARKS = ("ds_", "_ds_", "_deepspeed", "_external", "pre_bwd", "post_bwd")
"""How attributes begin that the engine leaves on modules: it has no way to take itself off."""
WITHOUT_VALUES = ("_backward_hooks", "_post_accumulate_grad_hooks", "_version")
"""Attributes of a tensor that are the same whether it is empty or whole."""


def runs_own_backward(engine: Any) -> bool:
    """Whether `engine.backward` runs, and not that of a tensor. It has no public name."""
    return bool(engine._running_engine_backward)


def replace(owner: Any, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Have `method` called in the place of one of `REPLACED`; return the object's own."""
    original: Callable[..., Any] = getattr(owner, name)
    # patch: engine methods
    setattr(owner, name, method)
    return original


def put_back(owner: Any, *names: str) -> None:
    """Give an object its class's methods again."""
    for name in names:
        delattr(owner, name)


def fragment_of(parameter: nn.Parameter) -> Any | None:
    """Return where a parameter is in a flat tensor of stage 1 or 2, as `start` and `numel`; None on another rank.

    `deepspeed.utils.safe_get_full_fp32_param` gathers the whole, and nothing public gives the place.
    """
    mapping = getattr(parameter, "_hp_mapping", None)
    return None if mapping is None else mapping.hp_fragment_address


def stage3_of(parameter: nn.Parameter) -> Any:
    """Return the optimizer of stage 3 that steps a parameter; public functions only read and write whole tensors."""
    return parameter._z3_optimizer  # type: ignore[attr-defined]  # the engine sets it


def forget_process_groups() -> None:
    """Drop what the engine keeps of a process group that has been closed.

    `deepspeed.comm.destroy_process_group` does it once it has destroyed torch's group, which is not its own here.
    """
    import deepspeed.comm.comm
    from deepspeed.utils import groups

    groups._release_process_group_references()
    # patch: engine state
    deepspeed.comm.comm.cdb = None


def number_parameters_from(number: int) -> None:
    """Begin counting parameters here: ranks compare the numbers, and one of them may have had an engine before."""
    from deepspeed import zero

    # patch: engine state
    zero.Init.param_id = number


def forget_children(engine: nn.Module) -> None:
    """Take the user's module off an engine, which `destroy` leaves on it: who has the engine has its memory."""
    engine._modules.clear()


def leave_forward_stack(module: nn.Module) -> None:
    """Take a module off ZeRO stage 3's stack of running forwards, a global list that it stays on for good."""
    from deepspeed.runtime.zero import parameter_offload

    own = set(map(id, module.modules()))
    stack = parameter_offload.FWD_MODULE_STACK
    stack[:] = [each for each in stack if id(each) not in own]


def give_plain_table(module: nn.Module) -> None:
    """Give a module a dict of parameters again: the engine put one there that gathers what it returns."""
    if type(module._parameters) is not dict:
        # patch: engine state
        module.__dict__["_parameters"] = dict(module._parameters.items())


def as_plain_tensors() -> AbstractContextManager[Any]:
    """Around a call of torch: tensor subclasses aren't asked, as at the end of a `__torch_function__`."""
    context: AbstractContextManager[Any] = torch._C.DisableTorchFunctionSubclass()
    return context


def is_gathered_by_user(parameter: Any) -> bool:
    """Whether a parameter is within a `GatheredParameters`. It has no public name."""
    return bool(getattr(parameter, "_ds_z3_gathered_param_context_depth", 0))


def finds_accumulation(func: Any, args: Any) -> bool:
    """Whether a call is torch's own `_get_grad_fn_or_grad_acc`, by which the engine counts gradients."""
    return func == torch.Tensor.view_as and args[0] is args[1]


def is_used_by_caller(parameter: Any) -> bool:
    """Whether a module whose forward runs has used another's parameter, which the engine then gathers for it."""
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK

    return any(id(parameter) in getattr(module, "_external_params", ()) for module in FWD_MODULE_STACK)
