"""A process group for DeepSpeed, whose engine keeps references to process groups in globals."""

from __future__ import annotations

import os
from datetime import timedelta

import torch

from stratagem import Environment, ProcessGroupCollectives
from stratagem_deepspeed import library


class EngineCollectives(ProcessGroupCollectives):
    """Like its base class; also sets the environment variables that DeepSpeed reads, and drops its groups on close.

    Args:
        environment: this process's ranks, and the rendezvous address.
        device: of the tensors that collectives take.
        backend: as "gloo" or "nccl".
        timeout: how long a collective waits for a rank before it fails.
    """

    def __init__(
        self, environment: Environment, device: torch.device, backend: str, timeout: timedelta
    ) -> None:
        wanted = {
            "RANK": environment.global_rank,
            "LOCAL_RANK": environment.local_rank,
            "WORLD_SIZE": environment.world_size,
            "LOCAL_SIZE": environment.local_world_size,
            "MASTER_ADDR": environment.main_address,
            "MASTER_PORT": environment.main_port,
        }
        self._set = [name for name in wanted if name not in os.environ]
        for name in self._set:
            os.environ[name] = str(wanted[name])
        super().__init__(environment, device, backend, timeout)

    def close(self, failed: bool = False) -> None:
        try:
            super().close(failed)
        finally:
            library.forget_groups()
            for name in self._set:
                os.environ.pop(name, None)
            self._set.clear()
