"""Watch all communication of this process through `torch.distributed`, including that of engines in C++.

Every collective of `torch.distributed` is an operator of torch's dispatcher, including those of
DistributedDataParallel's reducer and of `fully_shard`. Collectives have no kernels for the dispatch key "Autograd".
While an observer is registered, this module adds such kernels: they call the same operator below that key, where the
GIL is released, and notify the observer. Without observers nothing differs from plain torch.
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
"""Called with the name of a collective, such as "all_reduce", and the size of its message in bytes."""

_observers: list[Observer] = []
_kernels: list[Library] = []
_lock = Lock()


def watch_traffic(observer: Observer) -> Callable[[], None]:
    """Notify `observer` of every collective of this process from now on; return a function that ends this.

    The size of a message is that of the unsharded tensor: an all_gather's output, a reduce_scatter's input, and the
    tensor of any other collective. Messages of checks, of pickled objects and of subgroups count too. Some traffic is
    not seen, since it doesn't pass the dispatch key "Autograd": barriers, functional collectives (used by DTensor),
    messages that an engine such as XLA sends without `torch.distributed`, and everything under
    `torch.inference_mode()`. While it is observed, each collective takes about 0.2 ms longer in this process. Not
    collective: each rank observes its own.

    Args:
        observer: called after the collective was started, on the same thread. It must not raise or communicate.
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
            _kernels.clear()  # destroying the library restores torch's own kernels


def _telling_kernels() -> Library:
    library = Library("c10d", "IMPL")  # type: ignore[no-untyped-call]  # torch has no types for it
    for operator, name in COLLECTIVE_OPERATORS.items():
        found = getattr(torch.ops.c10d, operator).default
        library.impl(operator, _telling(name, found), "Autograd")  # type: ignore[no-untyped-call]  # torch has no types for it
    return library


def _telling(name: str, operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **options: Any) -> Any:
        # Not `torch.library.get_kernel`: its kernels are called with the GIL held, which deadlocks with gloo's
        # threads (see `below_autograd`).
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
