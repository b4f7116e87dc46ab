"""Tasks for the launch tests, in a module that every worker can import."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from stratagem.errors import ConfigError


def rank() -> int:
    return int(os.environ["RANK"])


def place(argument: object) -> dict[str, object]:
    return {
        "argument": argument,
        "rank": os.environ["RANK"],
        "local_rank": os.environ["LOCAL_RANK"],
        "world_size": os.environ["WORLD_SIZE"],
        "node_rank": os.environ["NODE_RANK"],
        "pid": os.getpid(),
        "parent": os.getppid(),
    }


def threads() -> tuple[int, str]:
    import torch

    return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]


def variable(name: str) -> str | None:
    return os.environ.get(name)


def big(size_bytes: int) -> bytes:
    return b"x" * size_bytes


def unpicklable_value() -> object:
    return lambda: None


def speak() -> None:
    print(f"out of rank {rank()}", flush=True)
    print(f"err of rank {rank()}", file=sys.stderr, flush=True)


def note_pid(folder: str) -> None:
    unfinished = Path(folder) / f"unfinished.{rank()}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(Path(folder) / f"pid.{rank()}")


def gather(folder: str, world_size: int = 2) -> list[int]:
    """Note this worker's pid and wait until all have: nothing happens to a half-started group."""
    note_pid(folder)
    paths = [Path(folder) / f"pid.{other}" for other in range(world_size)]
    deadline = time.monotonic() + 200
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline:
            raise TimeoutError("the other workers didn't start")
        time.sleep(0.01)
    return [int(path.read_text()) for path in paths]


def fail_on(failing: int, folder: str) -> None:
    gather(folder)
    if rank() == failing:
        raise ValueError(f"negative size on rank {failing}")
    time.sleep(600)


def refuse_on(failing: int, folder: str) -> None:
    gather(folder)
    if rank() == failing:
        raise ConfigError("there is no setting 'lr2'; did you mean 'lr'?")
    time.sleep(600)


def kill_on(failing: int, folder: str, number: int) -> None:
    """Rank `failing` is ended by a signal; its peer fails soon after because it is gone."""
    pids = gather(folder)
    if rank() == failing:
        os.kill(os.getpid(), number)
    while Path(f"/proc/{pids[failing]}/fd").exists() and _has_files(pids[failing]):
        time.sleep(0.0005)
    raise ConnectionError("the peer has closed the connection")


def _has_files(pid: int) -> bool:
    try:
        return bool(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def exit_on(failing: int, folder: str, code: int) -> None:
    gather(folder)
    if rank() == failing:
        os._exit(code)
    time.sleep(600)


def end_early(failing: int, folder: str, how: str, timeout_s: float) -> int:
    """All ranks reduce twice, and one of them ends by itself between the two."""
    import datetime

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    dist.all_reduce(torch.ones(1))
    gather(folder)
    if rank() == failing:
        leave(how)
    dist.all_reduce(torch.ones(1))
    return 3


def leave(how: str) -> None:
    if how == "os._exit":
        os._exit(0)
    if how == "sys.exit":
        import torch.distributed as dist

        error = SystemExit(0)
        error.failed_at = time.time()  # as `Runtime` does it
        dist.destroy_process_group()
        raise error
    os.kill(os.getpid(), signal.SIGSTOP)


def all_leave(how: str, ranks: tuple[int, ...] = (0, 1)) -> int:
    if rank() in ranks:
        leave_quietly(how)
    return 3


def leave_quietly(how: str) -> None:
    (os._exit if how == "os._exit" else sys.exit)(0)


def fork_and_go_on() -> int:
    """A child of a worker may end as it likes."""
    child = os.fork()
    if not child:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fail_at_length(kind: str) -> None:
    if kind == "lines":
        raise ValueError("first line\nsecond line\n  third")
    if kind == "empty first":
        raise RuntimeError("\n\n-- Process 1 ended\nmore")
    if kind == "indented":
        raise RuntimeError("\n        the stage failed\n        its inputs")
    if kind == "loader":
        from torch.utils.data import DataLoader

        list(DataLoader(range(4), num_workers=1, collate_fn=refuse_batch))
    compile("x = = 1", "text.py", "exec")


def refuse_batch(batch: object) -> None:
    raise ValueError("bad sample")


def stuck_in_collective(folder: str) -> None:
    """Rank 0 waits in an all_reduce for rank 1, which raises; SIGTERM alone would not end rank 0."""
    import torch
    import torch.distributed as dist

    signal.signal(signal.SIGTERM, lambda *_: None)
    dist.init_process_group("gloo")
    gather(folder)
    if rank() == 1:
        raise ValueError("rank 1 gives up")
    # A second group whose other member never comes: gloo doesn't notice that rank 1 has gone.
    dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1))
    time.sleep(600)


def ignore_sigterm_and_wait(folder: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    gather(folder)
    while True:
        time.sleep(600)


def wait_with_loader(folder: str, context: str | None = None) -> None:
    """Hold a data loader's worker process besides, and note its pid as well."""
    from torch.utils.data import DataLoader

    batches = iter(DataLoader(list(range(10**6)), num_workers=1, multiprocessing_context=context))
    next(batches)
    loader_pid = batches._workers[0].pid
    (Path(folder) / f"loader.{rank()}").write_text(str(loader_pid))
    gather(folder)
    time.sleep(600)


def wait_with_served_loader(folder: str) -> None:
    wait_with_loader(folder, "forkserver")


def default_start_method() -> str:
    import multiprocessing

    return multiprocessing.get_start_method()


def sum_over_ranks(attempt: int) -> float:
    import datetime

    import torch
    import torch.distributed as dist

    from stratagem.collectives.stores import store_file

    file = store_file(os.environ)
    server = (
        dist.FileStore(file)
        if file
        else dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=datetime.timedelta(seconds=30),
        )
    )
    store = dist.PrefixStore(f"attempt{attempt}", server)
    dist.init_process_group("gloo", store=store, rank=rank(), world_size=int(os.environ["WORLD_SIZE"]))
    value = torch.ones(1) * (rank() + 1)
    dist.all_reduce(value)
    dist.barrier()
    dist.destroy_process_group()
    return float(value)


def fail_first_attempt() -> tuple[int, float]:
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    total = sum_over_ranks(attempt)
    if attempt == 0 and rank() == 1:
        raise RuntimeError("the first attempt fails")
    return attempt, total
