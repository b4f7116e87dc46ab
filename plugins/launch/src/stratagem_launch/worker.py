"""Runs in each launched process: it prepares the process, runs the task, and records how it ended.

Also the program of a fresh interpreter: `python -m stratagem_launch.worker DIRECTORY`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing
import os
import pickle
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from multiprocessing import spawn
from typing import Any, NoReturn

from stratagem import Task
from stratagem.errors import SealError, StratagemError, UsageError
from stratagem.sdk.processes import store_variables
from stratagem_launch.early_exit import early_exits_fail
from stratagem_launch.fork_server import own_fork_servers
from stratagem_launch.guard import SAVED_FROM, die_with, die_with_parent, set_pdeathsig_in_children
from stratagem_launch.launch_dir import ROUND, Failure, Job, LaunchDir, log_file
from stratagem_launch.preemption import Preempted
from stratagem_launch.rendezvous.joining import ends_for_nodes
from stratagem_launch.restart_states import LAUNCH_VARIABLE
from stratagem_launch.transfer.pickling import loads

LINGER_S = 0.25
"""How long a failed worker waits before it exits. It may have failed because a signal ended a peer: the launcher then
notices that peer's end first. Other peers notice the failure only when this worker exits."""

_SET_BY_ELASTIC = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
    }
)


def run_worker(directory: str, task: Task | None = None) -> None:
    """Run the launched task in this process. Rank 0 writes the result to the launch's folder.

    Args:
        directory: path of the launch's `LaunchDir`.
        task: the task, if it was passed by fork; None reads it from the launch's folder.
    """
    rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    launch_dir = LaunchDir(directory)
    attempt = _attempt(launch_dir, restarts)
    if task is not None:
        # A fork inherits the launching process's garbage, perhaps with a process group that an error's traceback
        # kept. Collecting the group here would wait for threads that this process doesn't have.
        gc.freeze()
    _reset_signals()
    die_with_parent()
    set_pdeathsig_in_children()
    try:
        launch_dir.mark("started", attempt, rank)
        job: Job = pickle.loads(launch_dir.get("job"))
    except FileNotFoundError:
        os._exit(1)  # the launcher gave up while this process was starting
    die_with(job.launcher_pid)
    if launch_dir.has("closing"):
        os._exit(1)
    try:
        if job.log_dir is not None:
            _redirect_output(job.log_dir, restarts, rank)
        _write_whole_lines()
        _take_environment(job)
        # Programs of other trainers and launchers read NODE_RANK. Torch's elastic launcher calls it GROUP_RANK.
        os.environ["NODE_RANK"] = os.environ["GROUP_RANK"]
        os.environ[LAUNCH_VARIABLE] = directory
        if job.has_store:
            os.environ.update(store_variables(directory, os.environ["TORCHELASTIC_RUN_ID"], attempt))
        # multiprocessing passes the launcher's forkserver or spawn on to workers. Their data loaders must start
        # processes in the default way.
        multiprocessing.set_start_method(job.default_start_method, force=True)
        own_fork_servers()
        if job.preparation:
            _prepare_main(job.preparation)
        _limit_threads(job.environ)
        if task is None:
            task = loads(launch_dir.get("task"))
        with early_exits_fail(launch_dir, attempt, rank):
            value = task.function(*task.args)
        if rank == 0:
            launch_dir.put("result", _pickled_value(value))
    except BaseException as error:  # some of torch's own errors aren't derived from Exception
        if isinstance(error, Preempted):
            launch_dir.put_preempted(error, attempt, rank)
            launch_dir.mark("done", attempt, rank)
            if ends_for_nodes(launch_dir, attempt):
                raise
            return
        if isinstance(error, SystemExit) and not error.code:
            if rank == 0:
                launch_dir.put("result", pickle.dumps(None))
            launch_dir.mark("left", attempt, rank, getattr(error, "failed_at", None))
            return
        launch_dir.put_failure(_failure(error, rank, attempt))
        _leave()
    launch_dir.mark("done", attempt, rank)


def _attempt(launch_dir: LaunchDir, restarts: int) -> int:
    """Return the number of the round, on which nodes agree; without rounds, the number of this node's restarts.

    Also put the round into the environment, so that code that reads it there gets the same number on all ranks.
    """
    try:
        attempt = int(launch_dir.get(ROUND))
    except FileNotFoundError:
        return restarts
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
    return attempt


def _reset_signals() -> None:
    """Reset signal handlers that were inherited by fork. Ignore Ctrl-C, which the launching process handles."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, None):
            signal.signal(number, signal.SIG_DFL)
    for number in SAVED_FROM if "stratagem_launch.server" in sys.modules else (signal.SIGTERM,):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _redirect_output(log_dir: str, attempt: int, rank: int) -> None:
    for stream, name, number in ((sys.stdout, "stdout", 1), (sys.stderr, "stderr", 2)):
        stream.flush()
        with open(log_file(log_dir, attempt, rank, name), "ab") as file:
            os.dup2(file.fileno(), number)


def _write_whole_lines() -> None:
    """Write output line by line, even with PYTHONUNBUFFERED, because ranks share the console."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _take_environment(job: Job) -> None:
    """Set the launching process's variables. A process of a fork server has those of the server's start."""
    for name in set(os.environ) - set(job.environ) - _SET_BY_ELASTIC:
        del os.environ[name]
    for name, value in job.environ.items():
        if name not in _SET_BY_ELASTIC:
            os.environ[name] = value


def _prepare_main(preparation: dict[str, Any]) -> None:
    """Import the user's script as multiprocessing does, so that what it defines can be unpickled."""
    process = multiprocessing.current_process()
    process._inheriting = True  # type: ignore[attr-defined]  # launching is refused while it is set
    try:
        spawn.prepare(preparation)
    except SystemExit as error:
        raise UsageError(unguarded_sentence()) from error
    finally:
        del process._inheriting  # type: ignore[attr-defined]  # set above


def unguarded_sentence() -> str:
    """Return the advice for a script that launches workers without a guard."""
    return (
        "the script launches workers whenever it is imported, and each worker imports it: "
        'put the launching lines under `if __name__ == "__main__":`, or use start_method="fork"'
    )


def threads_per_worker(environ: Mapping[str, str], workers: int) -> int:
    """Return the user's OMP_NUM_THREADS, or else a fair share of the cores, at least 1.

    Args:
        environ: variables of the launching process.
        workers: processes on this node.
    """
    asked = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if re.fullmatch(r"[0-9]{1,6}", asked) and int(asked) > 0:
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // workers)


def _limit_threads(environ: Mapping[str, str]) -> None:
    count = threads_per_worker(environ, int(os.environ["LOCAL_WORLD_SIZE"]))
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
    import torch

    torch.set_num_threads(count)  # under a fork server, torch has read the server's OMP_NUM_THREADS already


def _pickled_value(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        if "cloudpickle" in sys.modules:  # if the task was sent by value, its result may have to be, too
            with contextlib.suppress(Exception):
                from stratagem_launch.transfer.by_value import dumps_by_value

                return dumps_by_value(value)
        raise UsageError(
            f"rank 0 returned a {type(value).__name__} that can't be sent to the launching process "
            f"({error}): return plain data, or write it to a file"
        ) from error


def _failure(error: BaseException, rank: int, attempt: int) -> Failure:
    now = getattr(error, "failed_at", None) or time.time()
    own = error.__traceback__
    shown = own.tb_next or own if own else None  # without the frame of `run_worker`
    pickled = None
    if isinstance(error, StratagemError):
        with contextlib.suppress(Exception):
            pickled = pickle.dumps(error)
    code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", 1)
    return Failure(
        rank=rank,
        attempt=attempt,
        host=socket.gethostname(),
        time=now,
        line=_first_line(error),
        traceback="".join(traceback.format_exception(type(error), error, shown)),
        exit_code=code if isinstance(code, int) and 0 < code < 256 else 1,
        usage=isinstance(error, (UsageError, SealError)),
        exception=pickled,
    )


def _first_line(error: BaseException) -> str:
    """Return one line that describes the error: its type and the first line of its message.

    A message that holds another traceback, such as a data loader's, also adds that traceback's last line.
    """
    text = "".join(traceback.format_exception_only(type(error), error))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    if not lines:
        return type(error).__name__
    first = lines[0]
    if first.endswith(":"):
        # The message begins with an empty line, or is indented.
        further = lines[1:2] or [line.strip() for line in str(error).splitlines() if line.strip()][:1]
        first = " ".join([first, *further])
    holds_traceback = any(line.startswith("Traceback (most recent") for line in text.splitlines())
    if holds_traceback or "Original Traceback" in text:
        return f"{first} … {lines[-1]}"
    return first


def _leave() -> NoReturn:
    """Exit without the interpreter's shutdown, which may wait for threads that never end."""
    time.sleep(LINGER_S)
    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)


if __name__ == "__main__":
    # Import the module under its own name, because the user's script will replace `__main__`.
    from stratagem_launch import worker

    worker.run_worker(sys.argv[1])
