"""For a `TorchTrainer` of Ray Train: workers that know their ranks, and leave the process group to the run."""

from __future__ import annotations

import os
import socket
from typing import Any

import ray.train
from ray.train.backend import Backend
from ray.train.torch import TorchConfig


class NoProcessGroup(TorchConfig):  # type: ignore[misc]  # Ray has no types
    """A `torch_config` whose workers get PyTorch's variables and open no process group: the run opens its own.

    A group that Ray Train has opened holds the port that the variables name until all of its ranks have closed it,
    so that a run can't open another there.
    """

    @property
    def backend_cls(self) -> type[Backend]:
        """What Ray Train calls when its workers have begun."""
        return _Variables


class _Variables(Backend):  # type: ignore[misc]  # Ray has no types
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        """Set the variables in each worker."""
        address, port = worker_group.execute_single(0, _address_and_port)
        worker_group.execute(_set_variables, address, port)


def _address_and_port() -> tuple[str, int]:
    with socket.socket() as free:
        free.bind(("", 0))
        return ray.util.get_node_ip_address(), free.getsockname()[1]


def _set_variables(address: str, port: int) -> None:
    context = ray.train.get_context()
    numbers = {
        "RANK": context.get_world_rank(),
        "LOCAL_RANK": context.get_local_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
        "NODE_RANK": context.get_node_rank(),
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR=address)
