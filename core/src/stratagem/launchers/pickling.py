"""Pickling what workers are to run, with what torch leaves out of a tensor.

`pickle` alone drops a tensor's hooks and its gradient, and makes two tensors of one memory into two of
their own: a worker would train another model than the one that it was given, and nobody would know.
"""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from stratagem.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn


def dumps(task: Any, start_method: str) -> bytes:
    """Pickle `task` for workers; read by `loads`.

    Args:
        task: any picklable object.
        start_method: for the error.

    Raises:
        UsageError: something in it can't be pickled; says what to change.
    """
    stream = io.BytesIO()
    try:
        pickle.dump(_next_hook_id(), stream)
        _JobPickler(stream, start_method).dump(task)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"the task can't be sent to workers by start_method={start_method!r} ({error}): define "
            'functions and classes at the top level of a module, or use start_method="fork"'
        ) from error
    return stream.getvalue()


def loads(content: bytes) -> Any:
    """Return what `dumps` was given, in a worker."""
    stream = io.BytesIO(content)
    _count_hooks_from(pickle.load(stream))
    return pickle.load(stream)


class _JobPickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, start_method: str) -> None:
        super().__init__(stream)
        self._start_method = start_method
        self._modules: list[nn.Module] = []
        """In the order in which they were come across: a module before those in it."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            return NotImplemented
        if isinstance(obj, torch.Tensor):
            return self._reduced(obj)
        if isinstance(obj, torch.storage.TypedStorage):
            # Made for each tensor, around the memory itself: of that, one object is pickled once.
            return _typed_storage, (obj._untyped_storage, obj.dtype)
        if isinstance(obj, torch.UntypedStorage):
            # Through a typed one: torch can't read an untyped one that was pickled (torch 2.13).
            content = torch.TypedStorage(wrap_storage=obj, dtype=torch.uint8, _internal=True).__reduce__()
            return _untyped_storage, content
        if isinstance(obj, torch.nn.Module):
            self._modules.append(obj)
        return NotImplemented

    def _reduced(self, tensor: torch.Tensor) -> Any:
        hooks, after = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
        grad = tensor.grad if tensor.is_leaf else None
        if not hooks and not after and grad is None:
            return NotImplemented
        for hook in (*(hooks or {}).values(), *(after or {}).values()):
            self._refuse_local(tensor, hook)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "backward hook .* will not be serialized")
            reduced: Any = tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # type: ignore[no-untyped-call]
        make, args, *state = reduced
        # As state, which is pickled after the tensor is known: a hook may refer to it.
        kept = (state[0] if state else None, hooks, after, grad)
        return make, args, kept, None, None, _complete

    def _refuse_local(self, tensor: torch.Tensor, hook: Any) -> None:
        while isinstance(hook, partial):
            hook = hook.func
        if not isinstance(hook, FunctionType) or not {"<lambda>", "<locals>"} & set(
            hook.__qualname__.split(".")
        ):
            return
        names = (name for module in self._modules for name, own in _tensors(module) if own is tensor)
        raise UsageError(
            f"the hook {hook.__qualname__} on parameter {next(names, 'without a name')!r} can't be sent to workers "
            f"by start_method={self._start_method!r}: define it at the top level of a module, or register it in "
            'configure_model, which runs in each worker, or use start_method="fork"'
        )


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _complete(tensor: Any, kept: tuple[Any, Any, Any, Any]) -> None:
    state, hooks, after, grad = kept
    if state is not None:
        tensor.__setstate__(state) if hasattr(tensor, "__setstate__") else tensor.__dict__.update(state)
    if hooks:
        tensor._backward_hooks = hooks
    if after:
        tensor._post_accumulate_grad_hooks = after
    if grad is not None:
        tensor.grad = grad


def _typed_storage(memory: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    import torch

    made: Any = torch.TypedStorage
    typed: torch.TypedStorage = made(wrap_storage=memory, dtype=dtype, _internal=True)
    return typed


def _untyped_storage(load: Callable[..., torch.TypedStorage], args: tuple[Any, ...]) -> torch.UntypedStorage:
    return load(*args)._untyped_storage


def _next_hook_id() -> int:
    hooks = sys.modules.get("torch.utils.hooks")
    return hooks.RemovableHandle.next_id if hooks is not None else 0


def _count_hooks_from(next_id: int) -> None:
    """Give hooks that this process registers other ids than those that came to it have."""
    if next_id:
        from torch.utils.hooks import RemovableHandle

        RemovableHandle.next_id = max(RemovableHandle.next_id, next_id)
