"""A process per device, started by torch_xla.launch. Written for TPUs: PJRT's CPU has one process only."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from stratagem_launch import loads, sending

from stratagem import (
    Clipping,
    Collectives,
    CombinationError,
    DeviceError,
    Launcher,
    LaunchRequest,
    LocalCollectives,
    ProcessGroupCollectives,
    ReduceRequest,
    SetupRequest,
    Task,
    UsageError,
    WorkerError,
    deadline,
)
from stratagem.sdk.collectives import check_reduction, check_tensor
from stratagem_xla import library
from stratagem_xla.prepared import XlaPrepared
from stratagem_xla.sharding import Layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem.sdk.collectives import ReduceOp


class XlaLauncher(Launcher):
    """Starts a process for each of this host's devices, and brings back what the first returned.

    Args:
        request: of the hook `launch`.

    Raises:
        CombinationError: something else has started processes already, or there are several nodes.
    """

    worker_environment = "env"

    def __init__(self, request: LaunchRequest) -> None:
        plan = request.plan
        if request.environment.creates_processes or plan.num_nodes > 1:
            raise CombinationError(
                f"spmd=False starts the processes of one machine itself, and here {request.environment.name} has "
                f"started some, or num_nodes={plan.num_nodes}: start it alone, or leave spmd=True"
            )
        self.start_method = plan.start_method

    def launch(self, task: Task) -> Any:
        """Run `task` in every process."""
        torch_xla = library.load()
        with contextlib.ExitStack() as held:
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="stratagem-xla-"))
            payload: bytes | Task = task
            if self.start_method == "spawn":
                payload = held.enter_context(sending(task, self.start_method, folder))
            try:
                torch_xla.launch(_work, args=(payload, folder, _free_port()), start_method=self.start_method)
            except UsageError:
                raise
            except Exception as error:
                raise WorkerError(f"a process failed: {type(error).__name__}: {error}") from error
            return pickle.loads(Path(folder, "result").read_bytes())


def _work(rank: int, payload: bytes | Task, folder: str, port: int) -> None:
    """What every process does."""
    import torch_xla.runtime as xr

    if xr.addressable_device_count() > 1:
        raise DeviceError(
            "a chip with two cores is two devices of one process, which spmd=False doesn't support: leave spmd=True"
        )
    size = xr.global_device_count()
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    os.environ[library.OWN_DEVICE] = "1"
    task = loads(payload) if isinstance(payload, bytes) else payload
    result = task.function(*task.args)
    if rank == 0:
        Path(folder, "result").write_bytes(pickle.dumps(result))


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def open_collectives(request: ReduceRequest) -> Collectives:
    """Open what processes talk through: memory of the CPU, and gloo. Collective."""
    if request.environment.world_size == 1:
        return LocalCollectives(request.device)
    return HostCollectives(request)


class HostCollectives(Collectives):
    """Collectives on the CPU, whose results are on the device of what was given.

    Gradients don't come this way: XLA reduces them on the devices.
    """

    def __init__(self, request: ReduceRequest) -> None:
        self._group = ProcessGroupCollectives(
            request.environment, torch.device("cpu"), "gloo", deadline(None, None)
        )
        self.rank, self.local_rank = self._group.rank, self._group.local_rank
        self.node_rank, self.world_size = self._group.node_rank, self._group.world_size
        self.device = request.device

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "mean") -> torch.Tensor:
        check_reduction(tensor, op)
        return self._group.all_reduce(tensor.cpu(), op).to(tensor.device)

    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        check_tensor("all_gather", tensor)
        return self._group.all_gather(tensor.cpu(), sync_grads).to(tensor.device)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        if not isinstance(value, torch.Tensor):
            return self._group.broadcast(value, src)
        return self._group.broadcast(value.cpu(), src).to(value.device)

    def gather_objects(self, value: Any) -> list[Any]:
        return self._group.gather_objects(value)

    def barrier(self, name: str | None = None) -> None:
        self._group.barrier(name)

    def all_arrive(self, name: str, timeout_s: float) -> bool:
        return self._group.all_arrive(name, timeout_s)

    def close(self, failed: bool = False) -> None:
        self._group.close(failed)


class ReplicaPrepared(XlaPrepared):
    """One replica of several, each in its process; XLA averages their gradients before a step.

    Args:
        request: as the `setup` hook received it.
        layout: of one device.
        sync_module_states: begin with the first process's parameters and buffers.
    """

    def __init__(self, request: SetupRequest, layout: Layout, sync_module_states: bool) -> None:
        import torch_xla.core.xla_model as xm

        super().__init__(request, layout)
        self._reduced: set[int] = set()
        self._reduce: Callable[[Any], None] = xm.reduce_gradients
        if sync_module_states:
            xm.broadcast_master_param(self.module)

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        self.reduce_gradients(index)
        return super().clip(index, clipping)

    def reduce_gradients(self, index: int) -> None:
        if index not in self._reduced:
            self._reduced.add(index)
            self._reduce(self.optimizers[index])

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        try:
            return super().step(index, closure)
        finally:
            self._reduced.discard(index)
