"""What collectives use of torch that torch keeps private: all of it, each with the reason.

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

    Public names make a new store, which needs another address and port. None returns the store of an open group.
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


def forget_meshes() -> None:
    """Drop what torch remembers of operations on DTensors: the meshes of their results, and so process groups.

    Meshes of one shape and name are equal to torch, and the groups of a mesh whose run has ended are closed. An
    operation in the next run would be sent through them. Torch has no public way to clear the cache.

    To be called in the process that opened the groups. In one that was forked from it, a group that goes waits
    forever for threads that it doesn't have there.
    """
    debug = sys.modules.get("torch.distributed.tensor.debug")
    if debug is None and "torch.distributed.tensor" in sys.modules:
        debug = import_module("torch.distributed.tensor.debug")
    if debug is None:
        return
    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()
    else:  # torch 2.9 has the cache in Python alone, and no function that clears it
        tensors = sys.modules["torch.distributed.tensor"]
        tensors.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
