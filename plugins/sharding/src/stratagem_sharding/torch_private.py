"""What this library uses of torch that torch keeps private: all of it, each with the reason.

plugins/sharding/tests/test_torch_private.py fails when torch changes one, or has a public way.
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

# TorchDispatchMode: torch.overrides has the mode for torch's functions, and none for the operations under them.
# tree_flatten, tree_map: what the dispatcher itself takes operations' arguments apart by, so that the same containers
# are looked into; torch 2.13 has no public torch.utils.pytree.

GET_VERSION = torch.Tensor._version.__get__  # type: ignore[attr-defined]  # torch types it as a number
"""What reads how often a tensor was written to in place, as a subclass's `__torch_function__` gets it."""
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that are its own tensors and children. A pickle and a copy of it have them under these."""
INITIALIZERS = ("_no_grad_trunc_normal_", "orthogonal_", "sparse_", "dirac_", "eye_")
"""Of torch.nn.init: they look at values, or leave out tensors on "meta". `trunc_normal_` calls the first."""


def own_parameters(module: nn.Module) -> dict[str, Any]:
    """Return a module's own parameters by name, in a dict that may be written to; None for one that isn't there.

    `named_parameters(recurse=False)` leaves out None and gives a shared one once, and setattr calls a module's
    own __setattr__, as an LSTM's, and refuses a tensor that isn't a Parameter.
    """
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Any]:
    """Return a module's own buffers by name, as `own_parameters`."""
    return module._buffers


def own_children(module: nn.Module) -> dict[str, Any]:
    """Return a module's own submodules by name, as `own_parameters`."""
    return module._modules


def own_table(module: nn.Module, name: str) -> dict[str, Any]:
    """Return that of `own_parameters` and `own_buffers` which has `name`."""
    return module._parameters if name in module._parameters else module._buffers


def own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a module's own parameters, then its buffers, by name; one with two names twice."""
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield name, tensor


def backward_hooks(tensor: torch.Tensor) -> dict[int, Callable[..., Any]] | None:
    """Return the dict that `register_hook` fills; None before the first. Handles remove hooks from it."""
    return tensor._backward_hooks


def set_backward_hooks(tensor: torch.Tensor, hooks: dict[int, Callable[..., Any]] | None) -> None:
    """Give a tensor the dict of another's hooks."""
    slots: Any = tensor
    slots._backward_hooks = hooks


def post_accumulate_hooks(tensor: torch.Tensor) -> dict[int, Callable[..., Any]] | None:
    """Return the dict that `register_post_accumulate_grad_hook` fills; None before the first."""
    return tensor._post_accumulate_grad_hooks


def set_post_accumulate_hooks(tensor: torch.Tensor, hooks: dict[int, Callable[..., Any]] | None) -> None:
    """Give a tensor the dict of another's hooks."""
    slots: Any = tensor
    slots._post_accumulate_grad_hooks = hooks


def is_compiled(module: nn.Module) -> bool:
    """Whether it is what `torch.compile` returned, its `compile` was called, or its forward is compiled.

    Forwards of ours that replace one have it as `original_forward`, and a compiled one as `compiled_forward`.
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
    """Return this rank's shard of a DTensor: `DTensor.to_local` goes through autograd, and takes 20 times as long."""
    return tensor._local_tensor  # type: ignore[no-any-return]  # Any keeps mypy from checking a private attribute


def with_shard(like: Any, shard: torch.Tensor) -> Any:
    """Return a DTensor placed as `like`, of `shard` itself: `DTensor.from_local` moves it to the mesh's device."""
    alias = like.detach() if like.dtype == shard.dtype else like.detach().to(shard.dtype)
    alias._local_tensor = shard
    return alias


def detached(tensor: Any) -> Any:
    """Return a DTensor without its gradient, whose shard is the very tensor: writes to both have one count.

    `DTensor.detach` makes a shard with a separate count of writes.
    """
    alias = tensor.detach()
    alias._local_tensor = tensor._local_tensor
    return alias


def memory_number(tensor: torch.Tensor) -> int:
    """Return a number that identifies a tensor's memory while it is alive, on "meta" too, where `data_ptr` is 0."""
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
    """Return the dimensions that one of torch's operations got as `dim`; empty for none, and for all."""
    given = next(
        (value for each, value in zip(declared_arguments(operation), args) if each.name == "dim"), None
    )
    dims = kwargs.get("dim", given)
    return [dims] if isinstance(dims, int) else list(dims or ())


@contextmanager
def replaced_initializers(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Have `make(original)` called in the place of each of `INITIALIZERS`, in this thread."""
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
    """Let `fully_shard` take a module again that it has had.

    Torch has no way to take it off, and refuses to apply it twice (pytorch/pytorch#107054).
    """
    from torch.distributed._composable_state import _module_state_mapping

    _module_state_mapping.pop(module, None)


def modules_by_policy(policy: Any, root: nn.Module) -> list[nn.Module] | None:
    """Return the modules that a policy object of torch.distributed.fsdp.wrap names; None for anything else.

    A `CustomPolicy` can't be called: `_run_policy` is how torch asks it and a `ModuleWrapPolicy`.
    """
    run = getattr(policy, "_run_policy", None)
    return None if run is None else list(run(root, set(), {}))


def below_autograd() -> Any:
    """Return a context in which an operator goes to the kernel below the dispatcher's key "Autograd".

    `torch.library.get_kernel` is the public way to the next kernel, and calls it with the interpreter's lock held,
    for which gloo's threads wait with a lock of theirs that the kernel wants: a deadlock (seen in torch 2.13).
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
"""Operator of torch's namespace c10d → the public function that calls it, as do engines in C++. torch has no public
table of them."""


def count_as_stepped(optimizer: Optimizer) -> None:
    """Mark an optimizer as stepped: schedulers over it warn unless they see that it was stepped before them."""
    optimizer._opt_called = True  # type: ignore[attr-defined]  # torch sets it without declaring it


def number_of_step_hooks(optimizer: Any) -> int:
    """Return how many hooks are registered around an optimizer's steps, which no public name says."""
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def is_of_scheduler(step: Any) -> bool:
    """Whether `optimizer.step` was replaced by a learning rate scheduler, which counts calls of it."""
    return bool(getattr(step, "_wrapped_by_lr_sched", False))


def at_end_of_backward(function: Callable[[], object]) -> None:
    """Call `function` when the backward that runs in this thread has ended, after what reducers do then.

    DistributedDataParallel and `fully_shard` use the same queue; there is no public name.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    # A reducer queues its callback later in this backward. A callback queued by a callback runs after all of them.
    engine.queue_callback(lambda: engine.queue_callback(function))


def backward_number() -> int:
    """Return a number of the backward that runs in this thread; -1 outside of one. It has no public name."""
    return int(torch._C._current_graph_task_id())


def view_base(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that autograd has `tensor` as a view of; None where it is none. There is no public name."""
    base: torch.Tensor | None = tensor._base
    return base
