"""What collectives use of torch that torch keeps private: all of it, each with the reason.

tests/core/collectives/test_torch_private.py tells when torch changes one, or has a public way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def store_of(group: Any = None) -> Any:
    """Return the store through which a group's processes find each other; the default group's if None.

    Public names make a store, and none returns that of a group which is open: another would need an address and a
    port of its own.
    """
    from torch.distributed.distributed_c10d import _get_process_group_store

    default: Any = dist.group.WORLD
    return _get_process_group_store(default if group is None else group)


def is_on(group: Any, device: torch.device) -> bool:
    """Whether a group reduces tensors on a kind of device.

    `dist.get_backend_config` answers with text, "cpu:gloo,cuda:nccl", and for the default group alone.
    """
    return device in group._device_types


def backend_on(group: Any, device: torch.device) -> str:
    """Return what a group uses on a kind of device, as "gloo", where `dist.get_backend` has one for all of them."""
    name: str = group._get_backend(device).name()
    return name


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
"""Operator of torch's namespace c10d → the public function that calls it, as do engines in C++, which nothing public
tells."""
