"""Private names of torch that collectives need, each with the reason.

tests/core/collectives/test_torch_private.py fails when torch changes one, or has a public way.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist


def store_of(group: Any = None) -> Any:
    """Return the store through which a group's processes find each other; the default group's if None.

    Public functions make a new store, which needs another address and port. None of them returns the store of an open
    group.
    """
    from torch.distributed.distributed_c10d import _get_process_group_store

    default: Any = dist.group.WORLD
    return _get_process_group_store(default if group is None else group)


def is_on(group: Any, device: torch.device) -> bool:
    """Whether a group reduces tensors on a kind of device.

    `dist.get_backend_config` returns text, "cpu:gloo,cuda:nccl", and only for the default group.
    """
    return device in group._device_types


def backend_on(group: Any, device: torch.device) -> str:
    """Return a group's backend for a kind of device, such as "gloo". `dist.get_backend` has one for all devices."""
    name: str = group._get_backend(device).name()
    return name


def forget_meshes() -> None:
    """Clear torch's cache of operations on DTensors, which keeps the meshes of results and so their process groups.

    To torch, meshes with the same shape and names are equal. An operation in the next run would therefore use the
    cached mesh of the run before, whose groups are closed. torch has no public way to clear the cache.

    Call it in the process that opened the groups. In a process that was forked from it, deleting a group waits
    forever for threads that don't exist there.
    """
    debug = sys.modules.get("torch.distributed.tensor.debug")
    if debug is None and "torch.distributed.tensor" in sys.modules:
        debug = import_module("torch.distributed.tensor.debug")
    if debug is None:
        return
    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()
    else:  # torch 2.9 has the cache only in Python, and no function that clears it
        tensors = sys.modules["torch.distributed.tensor"]
        tensors.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
