"""`Workers`: persistent processes that run one function after the other as the ranks of a run.

Starting processes takes most of the time of a small run. These are started once. For each task, they get the
environment variables that torchrun sets, so that a run begins and ends as under any launcher.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from stratagem_launch import loopback_variables

from stratagem.errors import StratagemError
from stratagem.sdk.processes import COMPILER, LOOPBACK, free_port, store_variables
from stratagem_testing.worker import SHOW_STACKS, Reply, serve

TIMEOUT_S = 240.0
"""Timeout after which a task counts as hanging, long enough for a busy machine."""
LINGER_S = 3.0
"""How long other ranks may go on after one failed. A rank may report the error of another before that one does."""
STACKS_S = 0.5
"""How long hanging ranks have for printing their stacks."""
PRELOADED = ("torch", COMPILER, "stratagem_trainer.trainer", "stratagem_testing.strategies")


class RankError(StratagemError):
    """A rank of a task raised, ended or hung.

    rank: the first rank that failed.
    error: its exception; None if it couldn't be pickled.
    output: the end of the rank's output.
    """

    def __init__(self, message: str, rank: int, error: BaseException | None = None, output: str = "") -> None:
        super().__init__(message)
        self.rank, self.error, self.output = rank, error, output


class _Process:
    """One process, and the connection to it."""

    def __init__(self, folder: str, number: int) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        self.output = Path(folder, f"{number}.log")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, str(self.output), os.getpid()))
        self.process.start()
        theirs.close()

    def send(self, task: bytes, environ: dict[str, str]) -> None:
        try:
            self.connection.send((task, environ))
        except OSError as error:  # the process ended between two tasks
            raise RankError(f"a worker ended unexpectedly: {error}", 0) from error

    def end(self) -> None:
        started = processes_of_session(self.process.pid)
        self.process.kill()
        for pid in started:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self.process.join()
        self.connection.close()

    def show_stacks(self) -> None:
        """Make the process print the stacks of its threads. Also works if it hangs outside of Python."""
        if SHOW_STACKS and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, SHOW_STACKS)

    def printed(self) -> str:
        return self.output.read_text(errors="replace")[-4000:] if self.output.exists() else ""


class Workers:
    """Starts processes when they are first needed, and again after a task that failed."""

    def __init__(self) -> None:
        self._folder = ""
        self._processes: list[_Process] = []
        self._made = self._tasks = 0
        self._run_id, self._port = uuid.uuid4().hex, free_port()

    def run(
        self, world_size: int, function: Callable[..., Any], *args: Any, timeout_s: float = TIMEOUT_S
    ) -> list[Any]:
        """Run `function(*args)` in every rank; return the results in the order of ranks.

        Raises:
            RankError: a rank raised, ended or hung. The processes are then ended.
        """
        self._start(world_size)
        self._tasks += 1
        task = pickle.dumps((function, args))
        ranks = self._processes[:world_size]
        try:
            for rank, process in enumerate(ranks):
                process.send(task, self._variables(rank, world_size))
            return self._replies(ranks, timeout_s)
        except BaseException:
            self.close()
            raise

    def alone(self, function: Callable[..., Any], *args: Any, timeout_s: float = TIMEOUT_S) -> Any:
        """Run `function(*args)` in a new process that no launcher started. It may launch others itself.

        Raises:
            RankError: it raised, ended or hung.
        """
        self._preload()
        process = self._new()
        try:
            process.send(pickle.dumps((function, args)), {})
            return self._replies([process], timeout_s)[0]
        finally:
            process.end()

    def close(self) -> None:
        """End all processes and remove their output. The next task starts new ones."""
        while self._processes:
            self._processes.pop().end()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def _start(self, count: int) -> None:
        if any(not each.process.is_alive() for each in self._processes):
            self.close()
        self._preload()
        while len(self._processes) < count:
            self._processes.append(self._new())

    def _preload(self) -> None:
        if "forkserver" in multiprocessing.get_all_start_methods():
            from stratagem_launch import preload_fork_server

            preload_fork_server(PRELOADED)

    def _new(self) -> _Process:
        self._made += 1
        self._folder = self._folder or tempfile.mkdtemp(prefix="stratagem-conformance-")
        return _Process(self._folder, self._made)

    def _variables(self, rank: int, world_size: int) -> dict[str, str]:
        everyone = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "ROLE_WORLD_SIZE": world_size}
        own = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
        # A different number for each task gives each a separate store.
        elastic = {"RUN_ID": self._run_id, "RESTART_COUNT": self._tasks, "MAX_RESTARTS": 0}
        return {
            **{name: str(value) for name, value in {**everyone, **own}.items()},
            **{f"TORCHELASTIC_{name}": str(value) for name, value in elastic.items()},
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(self._port),
            **store_variables(self._folder, self._run_id, self._tasks),
            **loopback_variables(),
        }

    def _replies(self, ranks: list[_Process], timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        waiting: dict[Connection, int] = {process.connection: rank for rank, process in enumerate(ranks)}
        results: list[Any] = [None] * len(ranks)
        failed: list[tuple[int, Reply]] = []
        while waiting and (ready := wait(list(waiting), max(0.0, deadline - time.monotonic()))):
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                reply = _received(connection, ranks[rank])
                results[rank] = reply.value
                if reply.failure:
                    failed.append((rank, reply))
                    deadline = min(deadline, time.monotonic() + LINGER_S)
        if failed:
            rank, reply = min(failed, key=lambda each: each[1].time)
            raise RankError(f"rank {rank}: {reply.failure}", rank, reply.error, ranks[rank].printed())
        if waiting:
            late = sorted(waiting.values())
            for rank in late:
                ranks[rank].show_stacks()
            time.sleep(STACKS_S)
            raise RankError(
                f"rank {', '.join(map(str, late))} hung: not done after {timeout_s:.0f} s",
                late[0],
                output="\n".join(f"rank {rank}:\n{ranks[rank].printed()}" for rank in late),
            )
        return results


def _received(connection: Connection, process: _Process) -> Reply:
    try:
        reply: Reply = pickle.loads(connection.recv_bytes())
    except (EOFError, ConnectionError):
        process.process.join(5)
        return Reply(failure=f"ended with exit code {process.process.exitcode}", time=time.time())
    return reply


def processes_of_session(leader: int | None) -> list[int]:
    """Return the other processes in the session that a process has started; none if there is no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # After the name in parentheses: state, parent, process group, session.
            session = int(stat.read_text().rpartition(")")[2].split()[3])
            if session == leader and int(stat.parent.name) != leader:
                found.append(int(stat.parent.name))
    return found


def shared_workers(purpose: str = "") -> Workers:
    """Return the workers that all checks of this thread share, or those for another purpose."""
    return _workers(purpose, threading.get_ident())


@cache
def _workers(purpose: str, thread: int) -> Workers:
    workers = Workers()
    atexit.register(workers.close)
    return workers
