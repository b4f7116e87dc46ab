"""The process group, of which the engine keeps references."""

from __future__ import annotations

import os
from datetime import timedelta

import torch

from stratagem import Environment, ProcessGroupCollectives
from stratagem_deepspeed import library


class EngineCollectives(ProcessGroupCollectives):
    """As its base; also sets the variables by which the engine knows its place, and drops its groups.

    Args:
        environment: this process's place, and where the ranks meet.
        device: where tensors are expected.
        backend: as "gloo" or "nccl".
        timeout: after which a collective that a rank doesn't join fails.
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
