"""Starting Horovod in a process of a run, and ending it."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

from stratagem_launch import loopback_variables

from stratagem import Collectives, CombinationError, Environment
from stratagem.errors import CollectiveError
from stratagem.sdk.processes import LOOPBACK
from stratagem_horovod import library
from stratagem_horovod.environment import Horovod

if TYPE_CHECKING:
    import torch


class Engine:
    """Horovod, started in this process among the ranks of a run. Collective to make.

    Where horovodrun or mpirun has started the processes, Horovod meets the others as it does in any program of them,
    and runs until the process ends: neither can be started again. Anywhere else rank 0 serves the rendezvous that
    horovodrun would serve, and Horovod ends with the run.

    Args:
        environment: this process's place.
        collectives: open among the same ranks.
        timeout: after which a reduction that a rank doesn't join fails.

    Attributes:
        hvd: the module `horovod.torch`.

    Raises:
        CombinationError: Horovod has other ranks than the run.
    """

    def __init__(self, environment: Environment, collectives: Collectives, timeout: timedelta) -> None:
        self.hvd = library.load()
        self._numbers = count()
        self._ends_with_run = not (
            self.hvd.is_initialized() or isinstance(environment, Horovod) or self._by_mpi(environment)
        )
        if not self.hvd.is_initialized():
            self._start(environment, collectives, timeout)
        self._rank, self._size = self.hvd.rank(), self.hvd.size()
        self._timeout_s = timeout.total_seconds()
        self._since: float | None = None
        self._closed, self._gave_up = threading.Event(), False
        if (self._rank, self._size) != (environment.global_rank, environment.world_size):
            raise CombinationError(
                f"Horovod takes this process for rank {self._rank} of {self._size}, and the run for rank "
                f"{environment.global_rank} of {environment.world_size}: start the processes by one of horovodrun, "
                "mpirun and --devices, and don't call hvd.init() before the run"
            )
        if self._size > 1:
            threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def waiting(self, doing: str) -> Iterator[None]:
        """Around what waits for other ranks.

        Args:
            doing: for the message, as "averaged gradients".

        Raises:
            CollectiveError: another rank has ended, or didn't come within the timeout.
        """
        self._since = time.monotonic()
        try:
            yield
        except (self.hvd.HorovodInternalError, ValueError) as error:
            if isinstance(error, ValueError) and not self._gave_up:
                raise
            raise self.failed(doing, error) from error
        finally:
            self._since = None

    def failed(self, doing: str, error: Exception) -> CollectiveError:
        """Return what to raise in the place of Horovod's own error."""
        return CollectiveError(
            f"rank {self._rank} of {self._size} failed while Horovod {doing}: another rank has ended, or didn't come "
            f"within {self._timeout_s:g} s ({error})"
        )

    def _watch(self) -> None:
        # Horovod's own limit, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, does nothing over gloo: its list of ranks, in
        # gloo_controller.cc of 0.28.1, is reserved and never sized.
        while not self._closed.wait(min(1.0, self._timeout_s / 4)):
            since = self._since
            if since is not None and time.monotonic() - since > self._timeout_s:
                self._gave_up = True
                self.hvd.shutdown()  # what waits raises, here and on every other rank
                return

    def number(self) -> int:
        """Return the next number, from 0, for the names of sent tensors; the same on all ranks."""
        return next(self._numbers)

    def join(self, device: torch.device) -> int:
        """Wait for the other ranks, and take part in their reductions with zeros meanwhile. Collective.

        Returns:
            The rank that came last.
        """
        last: int = self.hvd.join(-1 if device.type == "cpu" else device.index or 0)
        return last

    def close(self) -> None:
        """End Horovod, where it ends with the run; what other ranks still wait for fails there."""
        self._closed.set()
        if self._ends_with_run:
            self.hvd.shutdown()

    def _by_mpi(self, environment: Environment) -> bool:
        """Whether Horovod finds the others by MPI itself."""
        wanted = os.environ.get("HOROVOD_CONTROLLER", "mpi").lower()
        return environment.name == "mpi" and wanted == "mpi" and bool(self.hvd.mpi_built())

    def _start(self, environment: Environment, collectives: Collectives, timeout: timedelta) -> None:
        # Horovod's threads, which continue while Python computes, wait so long for each other.
        timeout_s = str(max(1, math.ceil(timeout.total_seconds())))
        # Fused by chance of time, messages would be summed in another order each time.
        ours = {"HOROVOD_GLOO_TIMEOUT_SECONDS": timeout_s, "HOROVOD_FUSION_THRESHOLD": "0"}
        variables = {name: os.environ.get(name, value) for name, value in ours.items()}
        if not self._ends_with_run:
            with _variables(variables):
                self.hvd.init()
            return
        with _served(environment, collectives) as found, _variables({**variables, **found}):
            self.hvd.init()
            collectives.barrier("Horovod has started")


@contextmanager
def _served(environment: Environment, collectives: Collectives) -> Iterator[dict[str, str]]:
    """Serve a rendezvous on rank 0; give the variables that horovodrun would set. Collective."""
    address = LOOPBACK if environment.world_size == environment.local_world_size else environment.main_address
    server = library.rendezvous_server(address) if environment.global_rank == 0 else None
    if server is not None:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        port = collectives.broadcast(server.server_address[1] if server is not None else None)
        places = collectives.gather_objects((environment.node_rank, environment.local_rank))
        yield _variables_of(environment, places, address, port)
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def _variables_of(
    environment: Environment, places: list[tuple[int, int]], address: str, port: int
) -> dict[str, str]:
    node, local_rank = environment.node_rank, environment.local_rank
    nodes = sorted(each for each, rank in places if rank == local_rank)
    found: dict[str, object] = {
        "RANK": environment.global_rank,
        "SIZE": environment.world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": sum(each == node for each, _ in places),
        "CROSS_RANK": nodes.index(node),
        "CROSS_SIZE": len(nodes),
        "HOSTNAME": f"node{node}",
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": port,
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    given = {**(loopback_variables() if address == LOOPBACK else {}), **os.environ}
    interface = given.get("HOROVOD_GLOO_IFACE") or given.get("GLOO_SOCKET_IFNAME")
    if interface:
        found["GLOO_IFACE"] = interface
    return {f"HOROVOD_{name}": str(value) for name, value in found.items()}


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process meanwhile: Horovod reads them while it starts, and environments must not."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
