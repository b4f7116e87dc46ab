"""What launchers use of torch that torch keeps private: all of it, each with the reason. Imports no torch.

plugins/launch/tests/test_torch_private.py tells when torch changes one, or has a public way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RENDEZVOUS_STATE = tuple(
    ("torch.distributed.elastic.rendezvous.dynamic_rendezvous", name)
    for name in ("_NodeDesc", "_RendezvousState")
)
"""Module and name of the classes that a pickled state of torch's rendezvous has, beside those of datetime."""
MODULE_TABLES = ("_modules", "_parameters", "_buffers")
"""What a module's pickle has its submodules and tensors under."""


def is_this_machine(host: str) -> bool:
    """Whether a rendezvous endpoint's host is this machine, by the same rules as torch's own c10d rendezvous.

    It decides who opens the store. Ranks that torch started decide by this function; others would hang.
    """
    from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname

    return bool(_matches_machine_hostname(host))


def hooks_of(tensor: torch.Tensor) -> tuple[Any, Any]:
    """Return the dicts that `register_hook` and `register_post_accumulate_grad_hook` fill.

    Torch's pickle of a tensor leaves out hooks, the first with a warning, and nothing public returns them.
    """
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def set_hooks(tensor: torch.Tensor, hooks: Any, after: Any) -> None:
    """Give a tensor what `hooks_of` returned in another process."""
    if hooks:
        tensor._backward_hooks = hooks
    if after:
        tensor._post_accumulate_grad_hooks = after


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Return a module's own buffers: `Module.buffers` may be overridden by the user's class."""
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
    """Return this process's newest collectives, as JSON: torch shows them otherwise to its own tools alone.

    Without the lines that called them, which torch 2.13 takes 4 to 30 s to name.
    """
    from torch._C import _distributed_c10d

    recorder: Any = _distributed_c10d
    dumped: str | bytes = recorder._dump_fr_trace_json()
    return dumped
