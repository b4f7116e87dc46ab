"""What collectives use of torch that torch keeps private: all of it, each with the reason.

tests/core/collectives/test_torch_private.py fails when torch changes one, or has a public way.
"""

from __future__ import annotations

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
