"""Pickles the task of workers, including the parts of tensors that torch leaves out.

`pickle` alone drops a tensor's hooks and its gradient, separates tensors that share memory, and copies each tensor's
whole memory several times. A worker would silently train another model than the user's.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stratagem import Task
from stratagem_launch.main_module import main_is_importable
from stratagem_launch.torch_private import buffers_of, hooks_of, memory_of, set_hooks, typed
from stratagem_launch.transfer.buffers import SMALL_BYTES, Layout, SentBuffers

if TYPE_CHECKING:
    import torch

PROTOCOL = 5
"""The first protocol with buffers outside of the pickle."""


@dataclass(frozen=True)
class SentTask:
    """A pickled task; `loads` reads its content."""

    content: bytes
    by_value: tuple[str, ...]
    """Names of the functions and classes that workers can't import, so that their code is in the content."""
    buffers: SentBuffers

    def close(self) -> None:
        """Free the memory that workers map. Workers that have read the content keep their maps."""
        self.buffers.close()


@contextlib.contextmanager
def sending(task: Task, start_method: str, folder: str) -> Iterator[bytes]:
    """Yield a task, pickled by `dumps`. Workers can read it with `loads` as long as this context is active."""
    ours = replace(task, notice=None)
    with contextlib.closing(dumps(ours, start_method, folder, main_is_importable())) as sent:
        if sent.by_value and task.notice is not None:
            task.notice(sent.by_value)
        yield sent.content


def dumps(task: Any, start_method: str, folder: str, main_is_importable: bool = True) -> SentTask:
    """Pickle `task` for workers on this machine.

    Functions and classes that workers can't import are pickled by value, with cloudpickle.

    Args:
        task: any object.
        start_method: for the error message.
        folder: of the launch, for large tensors and arrays that aren't kept in memory.
        main_is_importable: whether workers can import what `__main__` defines.

    Raises:
        UsageError: something in it can't be pickled; says what, and what to change. Or there is no room.
    """
    try:
        by_value: list[str] = []
        try:
            if not main_is_importable:
                raise pickle.PicklingError("what __main__ defines may be in it")
            pickled, buffers = _pickled(task, JobPickler)
        except Exception:
            from stratagem_launch.transfer.by_value import pickler_by_value

            pickled, buffers = _pickled(task, pickler_by_value(by_value, main_is_importable))
    except Exception as error:
        from stratagem_launch.transfer.unpicklable import refusal

        raise refusal(task, error, start_method, main_is_importable) from error
    try:
        layout = buffers.write(folder)
    except BaseException:
        buffers.close()
        raise
    head = pickle.dumps((_next_hook_id(), layout))
    named = dict.fromkeys(by_value)
    outermost = [name for name in named if not any(name.startswith(f"{other}.") for other in named)]
    return SentTask(head + pickled, tuple(outermost), buffers)


def loads(content: bytes) -> Any:
    """Return the task that `dumps` has pickled, in a worker."""
    stream = io.BytesIO(content)
    layout: Layout
    next_hook_id, layout = pickle.load(stream)
    _count_hooks_from(next_hook_id)
    return pickle.load(stream, buffers=layout.open())


def _pickled(task: Any, pickler: Callable[..., JobPickler]) -> tuple[bytes, SentBuffers]:
    stream, buffers = io.BytesIO(), SentBuffers()
    pickler(stream, buffers).dump(task)
    return stream.getvalue(), buffers


class JobPickler(pickle.Pickler):
    """Pickles tensors, arrays and modules.

    Args:
        stream: where the pickle goes.
        buffers: where the memory goes.
    """

    def __init__(self, stream: io.BytesIO, buffers: SentBuffers) -> None:
        super().__init__(stream, PROTOCOL, buffer_callback=buffers)
        self._buffers = buffers

    def reducer_override(self, obj: Any) -> Any:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if numpy is not None and isinstance(obj, numpy.ndarray):
            from stratagem_launch.transfer.arrays import reduced

            return reduced(obj)
        if torch is None:
            return NotImplemented
        if isinstance(obj, torch.Tensor):
            return self._reduced(obj, isinstance(obj, torch.nn.Parameter))
        if isinstance(obj, torch.storage.TypedStorage):
            # torch makes a typed storage for each tensor, around the same untyped one, which is pickled only once.
            return typed, (memory_of(obj), obj.dtype)
        if isinstance(obj, torch.UntypedStorage):
            return self._reduced_storage(obj)
        if isinstance(obj, torch.nn.Module):
            for buffer in buffers_of(obj).values():
                self._copy(buffer)
        return NotImplemented

    def _reduced(self, tensor: torch.Tensor, is_parameter: bool) -> Any:
        hooks, after = hooks_of(tensor)
        grad = tensor.grad if tensor.is_leaf else None
        if is_parameter:
            self._copy(tensor)
        if not hooks and not after and grad is None:
            return NotImplemented
        self._copy(grad)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "backward hook .* will not be serialized")
            reduced: Any = tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # type: ignore[no-untyped-call]  # torch has no types for it
        make, args, *state = reduced
        # As state, because that is pickled after the tensor is memoized: a hook may refer to the tensor.
        kept = (state[0] if state else None, hooks, after, grad)
        return make, args, kept, None, None, _complete

    def _copy(self, tensor: torch.Tensor | None) -> None:
        """Make workers copy a tensor that they will write to, into memory that can be resized."""
        with contextlib.suppress(
            RuntimeError, NotImplementedError, ValueError
        ):  # some tensors have no memory
            if tensor is not None and tensor.device.type == "cpu":
                self._buffers.copied.add(tensor.untyped_storage().data_ptr())

    def _reduced_storage(self, storage: torch.UntypedStorage) -> Any:
        import torch

        size_bytes = storage.nbytes()
        if storage.device.type != "cpu" or size_bytes < SMALL_BYTES:
            # As a typed storage, because torch 2.13 can't unpickle an untyped one.
            storage_of_bytes: Any = typed(storage, torch.uint8)
            return _small_storage, storage_of_bytes.__reduce__()
        address = storage.data_ptr()
        memory = (ctypes.c_char * size_bytes).from_address(address)
        memory.storage = storage  # type: ignore[attr-defined]  # keeps it alive as long as its memory
        return _storage, (pickle.PickleBuffer(memory), address in self._buffers.copied)


def _complete(tensor: Any, kept: tuple[Any, Any, Any, Any]) -> None:
    state, hooks, after, grad = kept
    if state is not None:
        tensor.__setstate__(state) if hasattr(tensor, "__setstate__") else tensor.__dict__.update(state)
    set_hooks(tensor, hooks, after)
    if grad is not None:
        tensor.grad = grad


def _small_storage(load: Callable[..., torch.TypedStorage], args: tuple[Any, ...]) -> torch.UntypedStorage:
    return memory_of(load(*args))


def _storage(buffer: memoryview, is_copied: bool) -> torch.UntypedStorage:
    import torch

    memory = torch.frombuffer(buffer, dtype=torch.uint8)
    return (memory.clone() if is_copied else memory).untyped_storage()


def _next_hook_id() -> int:
    hooks = sys.modules.get("torch.utils.hooks")
    return hooks.RemovableHandle.next_id if hooks is not None else 0


def _count_hooks_from(next_id: int) -> None:
    """Make hooks that this process registers have other ids than the unpickled ones."""
    if next_id:
        from torch.utils.hooks import RemovableHandle

        # patch: hook ids
        RemovableHandle.next_id = max(RemovableHandle.next_id, next_id)
