"""Private names of torch that launchers need, each with the reason. Importing this doesn't import torch.

plugins/launch/tests/test_torch_private.py fails when torch changes one, or has a public name.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

RENDEZVOUS_STATE = tuple(
    ("torch.distributed.elastic.rendezvous.dynamic_rendezvous", name)
    for name in ("_NodeDesc", "_RendezvousState")
)
"""Module and name of torch's classes in the pickled state of its rendezvous. It also has some of datetime."""
MODULE_TABLES = ("_modules", "_parameters", "_buffers")
"""Names under which a module's pickle has its submodules and tensors."""


def is_this_machine(host: str) -> bool:
    """Whether a rendezvous endpoint's host is this machine, by the same rules as torch's own c10d rendezvous.

    It decides who opens the store. Nodes of torch's own launcher use this function, so other rules could make nodes
    wait for each other.
    """
    from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname

    return bool(_matches_machine_hostname(host))


def hooks_of(tensor: torch.Tensor) -> tuple[Any, Any]:
    """Return the dicts that `register_hook` and `register_post_accumulate_grad_hook` fill.

    torch leaves hooks out of a tensor's pickle, those of `register_hook` with a warning. No public name returns them.
    """
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def set_hooks(tensor: torch.Tensor, hooks: Any, after: Any) -> None:
    """Give a tensor the hooks that `hooks_of` returned in another process."""
    if hooks:
        tensor._backward_hooks = hooks
    if after:
        tensor._post_accumulate_grad_hooks = after


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Return a module's direct buffers. The user's class may override the public `Module.buffers`."""
    return module._buffers


def memory_of(storage: torch.TypedStorage) -> torch.UntypedStorage:
    """Return the memory of a typed storage; `TypedStorage.untyped()` is the same with a deprecation warning."""
    memory: torch.UntypedStorage = storage._untyped_storage
    return memory


def typed(memory: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    """Wrap memory as the kind of storage that a tensor's pickle has, without torch's deprecation warning."""
    import torch

    made: Any = torch.TypedStorage
    storage: torch.TypedStorage = made(wrap_storage=memory, dtype=dtype, _internal=True)
    return storage


def recorded_collectives() -> str | bytes:
    """Return this process's newest collectives, as JSON. torch has no public name for it.

    The result lacks the lines of code that called them: torch 2.13 takes 4 to 30 s to find these.
    """
    from torch._C import _distributed_c10d

    recorder: Any = _distributed_c10d
    dumped: str | bytes = recorder._dump_fr_trace_json()
    return dumped


@contextmanager
def loader_workers_outlast(grace_period_s: float) -> Iterator[None]:
    """While active, loader workers that are forked live on for `grace_period_s` after SIGTERM.

    The signal may reach a whole process group, in which the trainer is about to save. torch's handler ends a worker
    at once, and the trainer would fail before the save. The only public code that runs in a worker after torch has
    set its handler is the user's `worker_init_fn`.
    """
    from torch.utils.data._utils import signal_handling

    handling: Any = signal_handling
    before = handling._set_worker_signal_handlers

    def end_later(number: int, frame: object) -> None:
        timer = threading.Timer(grace_period_s, os._exit, (0,))
        timer.daemon = True
        timer.start()

    def set_handlers(*args: Any) -> None:
        before(*args)
        signal.signal(signal.SIGTERM, end_later)

    # patch: loader workers
    handling._set_worker_signal_handlers = set_handlers
    try:
        yield
    finally:
        # patch: loader workers
        handling._set_worker_signal_handlers = before
