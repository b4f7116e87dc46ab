"""Collectives over a `torch.distributed` process group."""

from __future__ import annotations

import gc
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from stratagem.collectives.base import Collectives
from stratagem.collectives.connecting import quiet_connecting
from stratagem.collectives.group import GroupCollectives
from stratagem.collectives.proof import require_own_ranks
from stratagem.collectives.store import open_store
from stratagem.collectives.torch_private import backend_on, forget_meshes, is_on
from stratagem.errors import CollectiveError, CombinationError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from stratagem.environments.base import Environment


class ProcessGroupCollectives(GroupCollectives):
    """The default process group of `torch.distributed`, opened here and closed by `close`.

    Args:
        environment: this process's rank, and the address of the ranks' store.
        device: the device on which tensors are expected.
        backend: such as "gloo" or "nccl"; CPU tensors go through gloo with any backend.
        timeout: how long a collective waits for ranks that don't join it.

    Raises:
        CollectiveError: not all ranks came within `timeout`; names those that are missing. Or another
            process has connected in a rank's place.
        CombinationError: the process has such a group already.
    """

    def __init__(
        self, environment: Environment, device: torch.device, backend: str, timeout: timedelta
    ) -> None:
        if dist.is_initialized():
            raise CombinationError(
                "a torch.distributed process group is open in this process already, and a run opens its own: call "
                "torch.distributed.destroy_process_group() before the run, or don't open one"
            )
        self.timeout = timeout
        self._backend = backend
        self._store = open_store(environment, timeout)
        self._barriers = 0
        self._data: Collectives | None = None
        self._mesh: DeviceMesh | None = None
        with quiet_connecting():
            dist.init_process_group(
                f"cpu:gloo,{device.type}:{backend}" if device.type != "cpu" else backend,
                store=self._store,
                rank=environment.global_rank,
                world_size=environment.world_size,
                timeout=timeout,
            )
        if environment.run_secret and environment.world_size > 1 and _connects_by_gloo():
            require_own_ranks(self._store, environment)
        super().__init__(
            dist.group.WORLD, device, local_rank=environment.local_rank, node_rank=environment.node_rank
        )

    @property
    def backend(self) -> str:
        return self._backend.rpartition(f"{self.device.type}:")[2].partition(",")[0]

    @property
    def data(self) -> Collectives:
        return self if self._data is None else self._data

    @property
    def mesh(self) -> DeviceMesh | None:
        return self._mesh

    def arrange(self, mesh: DeviceMesh, data: Any) -> None:
        """Set the mesh of all ranks. It is kept until `close`.

        Args:
            mesh: over open groups of all ranks, as `ProcessGroupStrategy.open_mesh` returns it.
            data: name of the dimension along which ranks read different batches, or a group over several dimensions:
                see `share_data_among`.
        """
        self._mesh = mesh
        self.share_data_among(mesh.get_group(data) if isinstance(data, str) else data)

    def share_data_among(self, group: Any) -> None:
        """Divide the data among the ranks of `group`. Every other rank reads the batches of one of these.

        Args:
            group: an open `torch.distributed` group of this process and its counterpart in every other copy of the
                model, such as the group of one dimension of a device mesh. Kept until `close`.
        """
        self._data = GroupCollectives(
            group, self.device, local_rank=self.local_rank, node_rank=self.node_rank
        )

    def barrier(self, name: str | None = None) -> None:
        self._barriers += 1
        began = time.monotonic()
        # If the barrier fails, keys in the store show which ranks are missing. torch's error may not name them.
        came = [f"barrier/{self._barriers}/{rank}" for rank in range(self.world_size)]
        self._store.set(came[self.rank], "")
        what = f"barrier {name!r}" if name else "barrier"
        try:
            if self.device.type == "cpu" and dist.get_backend() == "gloo":
                # Unlike barrier(), this one gives up on rank 0 as soon as the time is over.
                dist.monitored_barrier(timeout=self.timeout)
            else:
                dist.barrier()
        except RuntimeError as error:
            missing = [str(rank) for rank, key in enumerate(came) if not self._store.check([key])]
            who = f"rank {', '.join(missing)} didn't come" if missing else "a rank broke off"
            timeout_s = self.timeout.total_seconds()
            is_over = time.monotonic() - began > 0.9 * timeout_s
            why = f"within {timeout_s:g} s" if is_over else "and its connection is closed"
            raise CollectiveError(
                f"rank {self.rank} of {self.world_size} failed in {what}: {who} {why}"
            ) from error

    def close(self, failed: bool = False) -> None:
        if not dist.is_initialized():
            return
        # A reducer that dies after its process group aborts the interpreter at exit (gloo).
        gc.collect()
        try:
            if not failed:
                self.barrier("close")
            # gloo's threads may still be releasing the last collective. Destroying the group at that moment can wait
            # for such a thread while holding the interpreter's lock, a deadlock (seen in gdb, torch 2.13).
            time.sleep(0.02)
        finally:
            self._group = self._data = self._mesh = None
            forget_meshes()
            dist.destroy_process_group()


def _connects_by_gloo() -> bool:
    """Whether tensors on the CPU go through gloo."""
    group: Any = dist.group.WORLD
    cpu = torch.device("cpu")
    return is_on(group, cpu) and backend_on(group, cpu) == "gloo"
