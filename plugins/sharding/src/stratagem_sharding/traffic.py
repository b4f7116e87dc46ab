"""Watch all communication of this process through `torch.distributed`, including that of engines in C++.

Every collective of `torch.distributed` is an operator of torch's dispatcher, also those of DistributedDataParallel's
reducer and of `fully_shard`. While someone watches, they have kernels for the dispatcher's key "Autograd", where
collectives have none; these call the same operator below that key, which lets go of the interpreter's lock, and
tell the watcher. While no one watches, nothing is different from plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch.library import Library

from stratagem_sharding.torch_private import COLLECTIVE_OPERATORS, below_autograd

__all__ = ["Observer", "watch_traffic"]

Observer = Callable[[str, int], None]
"""Is called with the name of a collective, as "all_reduce", and the size of its message in bytes."""

_observers: list[Observer] = []
_kernels: list[Library] = []
_lock = Lock()


def watch_traffic(observer: Observer) -> Callable[[], None]:
    """Tell `observer` of every collective of this process from now on, and return what ends that.

    The size of a message is that of the whole: of an all_gather's output, of a reduce_scatter's input, of the tensor
    of all others. Collectives' own checks, pickled objects and groups of subsets count. Not seen are barriers,
    functional collectives, as DTensors use them, what an engine sends without `torch.distributed`, as XLA does, and
    all under `torch.inference_mode()`: none of these passes the dispatcher's key "Autograd". Each collective takes
    some 0.2 ms more of this process's time while it is watched. No collective; each rank sees its own.

    Args:
        observer: is called after the collective was asked for, on that thread; it must not raise, nor communicate.
    """
    with _lock:
        _observers.append(observer)
        if not _kernels:
            _kernels.append(_telling_kernels())
    return lambda: _forget(observer)


def _forget(observer: Observer) -> None:
    with _lock:
        if observer in _observers:
            _observers.remove(observer)
        if not _observers:
            _kernels.clear()  # torch's own kernels are back with the library's end


def _telling_kernels() -> Library:
    library = Library("c10d", "IMPL")  # type: ignore[no-untyped-call]  # torch has no types for it
    for operator, name in COLLECTIVE_OPERATORS.items():
        found = getattr(torch.ops.c10d, operator).default
        library.impl(operator, _telling(name, found), "Autograd")  # type: ignore[no-untyped-call]  # torch has no types for it
    return library


def _telling(name: str, operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **options: Any) -> Any:
        # Not by `torch.library.get_kernel`: a kernel that it returns is called with the interpreter's lock held, and
        # gloo's threads wait for that with a lock of theirs, which the kernel wants (torch 2.13).
        with below_autograd():
            result = operator(*args, **options)
        size_bytes = max(*map(_size_bytes, args[:2]), _size_bytes(result))
        for observer in tuple(_observers):
            observer(name, size_bytes)
        return result

    return kernel


def _size_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_size_bytes, value)) if isinstance(value, (list, tuple)) else 0
