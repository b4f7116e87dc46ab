"""All private names of torch that this library uses, each with the reason.

plugins/sharding/tests/test_torch_private.py fails if torch changes one of them, or adds a public replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from threading import Lock, local
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_map as tree_map

__all__ = [
    "GET_VERSION",
    "MODULE_TABLES",
    "at_end_of_backward",
    "backward_hooks",
    "backward_number",
    "count_as_stepped",
    "detached",
    "dims_of",
    "is_compiled",
    "is_of_scheduler",
    "local_shard",
    "number_of_step_hooks",
    "own_buffers",
    "own_children",
    "own_parameters",
    "own_table",
    "own_tensors",
    "post_accumulate_hooks",
    "set_backward_hooks",
    "set_post_accumulate_hooks",
    "with_shard",
]

# TorchDispatchMode: torch.overrides has only a mode for torch's functions, not for the operators that they call.
# tree_flatten, tree_map: the dispatcher uses these for the arguments of operators, so that they see the same
# containers. torch 2.13 has no public torch.utils.pytree.

GET_VERSION = torch.Tensor._version.__get__  # type: ignore[attr-defined]  # torch types it as a number
"""The function that reads a tensor's version counter, as passed to a subclass's `__torch_function__`."""
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold its own tensors and children; its pickles and copies use the same names."""
INITIALIZERS = ("_no_grad_trunc_normal_", "orthogonal_", "sparse_", "dirac_", "eye_")
"""Functions of torch.nn.init that read values or skip tensors on "meta". `trunc_normal_` calls the first."""


def own_parameters(module: nn.Module) -> dict[str, Any]:
    """Return a module's own parameters by name, in a dict that may be written to; None for an absent parameter.

    The public names don't do this: `named_parameters(recurse=False)` leaves out None and yields a shared parameter
    once. `setattr` calls a module's own `__setattr__`, such as an LSTM's, and refuses a tensor that isn't a
    Parameter.
    """
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Any]:
    """Return a module's own buffers by name, as `own_parameters`."""
    return module._buffers


def own_children(module: nn.Module) -> dict[str, Any]:
    """Return a module's own submodules by name, as `own_parameters`."""
    return module._modules


def own_table(module: nn.Module, name: str) -> dict[str, Any]:
    """Return `own_parameters` or `own_buffers`, whichever has `name`."""
    return module._parameters if name in module._parameters else module._buffers


def own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors of a module's own parameters, then of its buffers; a tensor with two names twice."""
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield name, tensor


def backward_hooks(tensor: torch.Tensor) -> dict[int, Callable[..., Any]] | None:
    """Return the dict that `register_hook` fills; None before the first hook. Handles remove hooks from it."""
    return tensor._backward_hooks


def set_backward_hooks(tensor: torch.Tensor, hooks: dict[int, Callable[..., Any]] | None) -> None:
    """Give a tensor the dict of another's hooks."""
    slots: Any = tensor
    slots._backward_hooks = hooks


def post_accumulate_hooks(tensor: torch.Tensor) -> dict[int, Callable[..., Any]] | None:
    """Return the dict that `register_post_accumulate_grad_hook` fills; None before the first hook."""
    return tensor._post_accumulate_grad_hooks


def set_post_accumulate_hooks(tensor: torch.Tensor, hooks: dict[int, Callable[..., Any]] | None) -> None:
    """Give a tensor the dict of another's hooks."""
    slots: Any = tensor
    slots._post_accumulate_grad_hooks = hooks


def is_compiled(module: nn.Module) -> bool:
    """Whether a module was returned by `torch.compile`, its `compile` was called, or its forward is compiled.

    Stratagem's replaced forwards keep the original as `original_forward`, and a compiled one as `compiled_forward`.
    """
    if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
        return True
    forward = vars(module).get("forward")
    while forward is not None:
        if hasattr(getattr(forward, "compiled_forward", forward), "_torchdynamo_orig_callable"):
            return True
        forward = getattr(forward, "original_forward", None)
    return False


def local_shard(tensor: Any) -> torch.Tensor:
    """Return this rank's shard of a DTensor. `DTensor.to_local` goes through autograd, and takes 20 times as long."""
    return tensor._local_tensor  # type: ignore[no-any-return]  # Any keeps mypy from checking a private attribute


def with_shard(like: Any, shard: torch.Tensor) -> Any:
    """Return a DTensor of `shard`, placed as `like`. `DTensor.from_local` would move it to the mesh's device."""
    alias = like.detach() if like.dtype == shard.dtype else like.detach().to(shard.dtype)
    alias._local_tensor = shard
    return alias


def detached(tensor: Any) -> Any:
    """Return a DTensor without gradient that has the same shard object, so that both share a version counter.

    `DTensor.detach` creates a shard with a separate version counter.
    """
    alias = tensor.detach()
    alias._local_tensor = tensor._local_tensor
    return alias


def memory_number(tensor: torch.Tensor) -> int:
    """Return a number that identifies a tensor's memory while it is alive. On "meta", `data_ptr` would be 0."""
    return int(tensor.untyped_storage()._cdata)


def declared_arguments(operation: Any) -> Iterator[Any]:
    """Yield the declared arguments of an operation, each with a `name` and an `alias_info`.

    Only an operation's `_schema` says what it writes to.
    """
    yield from operation._schema.arguments


class _Replaced(local):
    by_name: Mapping[str, Callable[..., Any]] = {}


_REPLACED = _Replaced()
_USERS: list[object] = []
_LOCK = Lock()


def dims_of(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
    """Return the dimensions that an operator got as `dim`; empty if it got none, or reduces over all."""
    given = next(
        (value for each, value in zip(declared_arguments(operation), args) if each.name == "dim"), None
    )
    dims = kwargs.get("dim", given)
    return [dims] if isinstance(dims, int) else list(dims or ())


@contextmanager
def replaced_initializers(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace each of `INITIALIZERS` by `make(original)` in this thread. A context manager."""
    user = object()
    with _LOCK:
        if not _USERS:
            for name in INITIALIZERS:
                # patch: initializers
                setattr(nn.init, name, _by_thread(name, getattr(nn.init, name)))
        _USERS.append(user)
    before = _REPLACED.by_name
    _REPLACED.by_name = {name: make(getattr(nn.init, name).__wrapped__) for name in INITIALIZERS}
    try:
        yield
    finally:
        _REPLACED.by_name = before
        with _LOCK:
            _USERS.remove(user)
            if not _USERS:
                for name in INITIALIZERS:
                    # patch: initializers
                    setattr(nn.init, name, getattr(nn.init, name).__wrapped__)


def _by_thread(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _REPLACED.by_name.get(name, original)(*args, **kwargs)

    return call


def forget_sharding(module: nn.Module) -> None:
    """Allow `fully_shard` to be applied again to a module.

    Torch can't remove it, and refuses to apply it twice (pytorch/pytorch#107054).
    """
    from torch.distributed._composable_state import _module_state_mapping

    _module_state_mapping.pop(module, None)


def modules_by_policy(policy: Any, root: nn.Module) -> list[nn.Module] | None:
    """Return the modules that a policy object of torch.distributed.fsdp.wrap selects; None for other objects.

    A `CustomPolicy` can't be called. Torch itself calls `_run_policy` of it and of `ModuleWrapPolicy`.
    """
    run = getattr(policy, "_run_policy", None)
    return None if run is None else list(run(root, set(), {}))


def below_autograd() -> Any:
    """Return a context in which an operator dispatches to the kernel below the dispatch key "Autograd".

    The public way is `torch.library.get_kernel`, but it calls the kernel with the GIL held. That deadlocks (seen in
    torch 2.13): gloo's threads wait for the GIL while they hold a lock that the kernel waits for.
    """
    return torch._C._AutoDispatchBelowAutograd()


COLLECTIVE_OPERATORS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
"""Operator of torch's namespace c10d → the public function that calls it. Engines in C++ call the operators directly.
torch has no public table of them."""


def count_as_stepped(optimizer: Optimizer) -> None:
    """Mark an optimizer as stepped. Its schedulers warn if they step before the optimizer has stepped."""
    optimizer._opt_called = True  # type: ignore[attr-defined]  # torch sets it without declaring it


def number_of_step_hooks(optimizer: Any) -> int:
    """Return the number of pre- and post-hooks of an optimizer's steps. torch has no public name for it."""
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def is_of_scheduler(step: Any) -> bool:
    """Whether `step` is a learning rate scheduler's wrapper of `optimizer.step`, which counts calls."""
    return bool(getattr(step, "_wrapped_by_lr_sched", False))


def at_end_of_backward(function: Callable[[], object]) -> None:
    """Call `function` at the end of the backward that runs in this thread, after the callbacks of reducers.

    DistributedDataParallel and `fully_shard` use the same queue. torch has no public name for it.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    # A reducer queues its callback later in this backward. A callback queued by a callback runs after all of them.
    engine.queue_callback(lambda: engine.queue_callback(function))


def backward_number() -> int:
    """Return the number of this thread's current backward; -1 outside of one. torch has no public name for it."""
    return int(torch._C._current_graph_task_id())


def view_base(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the base of a view; None if `tensor` isn't a view. torch has no public name for it."""
    base: torch.Tensor | None = tensor._base
    return base
