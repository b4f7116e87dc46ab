"""`MPISubject`: the kit's ranks are processes of one mpirun, which find one another by MPI."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import pytest
from stratagem_testing import StrategySubject
from stratagem_testing.worker import serve
from stratagem_testing.workers import Workers

from stratagem.sdk.processes import LOOPBACK

KEY = "STRATAGEM_TEST_KEY"


def needs_mpi() -> None:
    """Skip a test where mpirun isn't installed, or Horovod was built without it."""
    import horovod.torch as hvd

    if shutil.which("mpirun") is None:
        pytest.skip("mpirun isn't installed: apt-get install openmpi-bin libopenmpi-dev")
    if not hvd.mpi_built():
        pytest.skip("Horovod was built without MPI: apt-get install libopenmpi-dev, and build it again")


class MPIWorkers(Workers):
    """Workers of a single number of ranks, since MPI starts once in a process."""

    def __init__(self) -> None:
        super().__init__()
        self._mpirun: subprocess.Popen[bytes] | None = None

    def _start(self, count: int) -> None:
        if len(self._processes) == count and self._mpirun is not None and self._mpirun.poll() is None:
            return
        self.close()
        key = secrets.token_hex(16)
        with Listener((LOOPBACK, 0), authkey=key.encode()) as listener:
            port = listener.address[1]
            mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(count))
            self._folder = tempfile.mkdtemp(prefix="stratagem-conformance-")
            command = [*mpirun, sys.executable, __file__, str(port), str(os.getpid()), self._folder]
            environ = {**os.environ, KEY: key, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._mpirun = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)
            came = [listener.accept() for _ in range(count)]
        for rank, connection in sorted((each.recv(), each) for each in came):
            output = Path(self._folder, f"{rank}.log")
            self._processes.append(_MPIProcess(connection, self._mpirun, output))

    def _variables(self, rank: int, world_size: int) -> dict[str, str]:
        # The rest mpirun has set. A number of its own gives each task a store of its own.
        return {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(self._port)}


class _MPIProcess:
    """What `Workers` asks of a process."""

    def __init__(self, connection: Connection, mpirun: subprocess.Popen[bytes], output: Path) -> None:
        self.connection, self.process, self.output = connection, _Ended(mpirun), output
        self._mpirun = mpirun

    def send(self, task: bytes, environ: dict[str, str]) -> None:
        self.connection.send((task, environ))

    def end(self) -> None:
        self._mpirun.kill()
        self._mpirun.wait()
        self.connection.close()

    def printed(self) -> str:
        return self.output.read_text(errors="replace")[-4000:] if self.output.exists() else ""


class _Ended:
    def __init__(self, mpirun: subprocess.Popen[bytes]) -> None:
        self._mpirun = mpirun

    @property
    def exitcode(self) -> Any:
        return self._mpirun.poll()

    def is_alive(self) -> bool:
        return self._mpirun.poll() is None

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._mpirun.wait(timeout)


@cache
def _workers(count: int) -> MPIWorkers:
    workers = MPIWorkers()
    atexit.register(workers.close)
    return workers


@dataclass(frozen=True)
class MPISubject(StrategySubject):
    """A strategy whose ranks are mpirun's; what launches processes itself does so as always."""

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> list[Any]:
        size = self.processes()
        with self._in_folder() as subject:
            return _workers(size).run(size, function, subject, *args, timeout_s=timeout_s or self.timeout_s)


if __name__ == "__main__":
    connection = Client((LOOPBACK, int(sys.argv[1])), authkey=os.environ.pop(KEY).encode())
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    connection.send(int(rank))
    serve(connection, os.path.join(sys.argv[3], f"{rank}.log"), int(sys.argv[2]))
