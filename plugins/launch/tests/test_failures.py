"""A worker that fails ends the launch with the first error, and leaves no process."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launch_tasks
import pytest
from stratagem_launch.elastic import ElasticLauncher

from stratagem import LaunchPlan, Task
from stratagem.errors import ConfigError, WorkerError

pytestmark = pytest.mark.serial

METHODS = ("forkserver", "popen")


def fail(task: Task, error: type[Exception], **plan: Any) -> Any:
    """Return the error of a launch whose other workers would go on for ten minutes."""
    with pytest.raises(error) as caught:
        ElasticLauncher(LaunchPlan(2, **plan)).launch(task)
    return caught.value


def pids(folder: Path) -> list[int]:
    return [int((folder / f"pid.{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(("method", "failing"), [("forkserver", 0), ("forkserver", 1), ("popen", 1)])
def test_exception(
    method: str,
    failing: int,
    tmp_path: Path,
    private_tmp: Path,
    all_end: Callable[..., bool],
    capfd: pytest.CaptureFixture[str],
) -> None:
    error = fail(Task(launch_tasks.fail_on, (failing, str(tmp_path))), WorkerError, start_method=method)
    host = socket.gethostname()
    assert str(error) == f"rank {failing} on {host} failed: ValueError: negative size on rank {failing}"
    assert (error.rank, error.host, error.exit_code) == (failing, host, 1)
    assert "in fail_on" in error.traceback
    assert all_end(pids(tmp_path))
    assert list(private_tmp.glob("stratagem-*")) == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("method", METHODS)
def test_usage_error_comes_through_as_itself(method: str, tmp_path: Path) -> None:
    task = Task(launch_tasks.refuse_on, (1, str(tmp_path)))
    error = fail(task, ConfigError, start_method=method)
    assert str(error) == "there is no setting 'lr2'; did you mean 'lr'?"
    assert error.exit_code == 2
    assert "in refuse_on" in error.worker_traceback


@pytest.mark.parametrize(
    ("method", "number"),
    [("forkserver", signal.SIGKILL), ("forkserver", signal.SIGSEGV), ("popen", signal.SIGKILL)],
)
def test_signal_is_named_before_what_it_caused(
    method: str, number: signal.Signals, tmp_path: Path, all_end: Callable[..., bool]
) -> None:
    task = Task(launch_tasks.kill_on, (1, str(tmp_path), int(number)))
    error = fail(task, WorkerError, start_method=method)
    assert str(error) == f"rank 1 on {socket.gethostname()} was ended by {number.name}"
    assert error.rank == 1
    assert all_end(pids(tmp_path))


def test_exit_without_a_word(tmp_path: Path) -> None:
    error = fail(Task(launch_tasks.exit_on, (1, str(tmp_path), 7)), WorkerError)
    assert str(error).endswith("exited with code 7 and no exception")


@pytest.mark.parametrize(
    ("how", "method"), [("os._exit", "forkserver"), ("sys.exit", "forkserver"), ("sys.exit", "popen")]
)
def test_rank_that_leaves_early_with_code_0_is_named(
    how: str, method: str, tmp_path: Path, all_end: Callable[..., bool]
) -> None:
    task = Task(launch_tasks.end_early, (1, str(tmp_path), how, 600.0))
    error = fail(task, WorkerError, start_method=method)
    line, _, followed = str(error).partition("; ")
    assert line == f"rank 1 on {socket.gethostname()} left by {how}(0) before the run was over"
    assert (error.rank, error.exit_code) == (1, 1)
    if how == "sys.exit":  # else rank 0 may have been ended before it could say a word
        assert followed.startswith("then rank 0 failed: RuntimeError")
        assert "all_reduce" in error.traceback
    assert all_end(pids(tmp_path))


def test_stopped_rank_is_named(tmp_path: Path, all_end: Callable[..., bool]) -> None:
    error = fail(Task(launch_tasks.end_early, (1, str(tmp_path), "SIGSTOP", 1.0)), WorkerError)
    line = f"rank 1 on {socket.gethostname()} stood still, stopped by a signal such as SIGSTOP; then rank 0 failed"
    assert str(error).startswith(line)
    assert all_end(pids(tmp_path))


def test_all_ranks_may_leave_by_sys_exit_and_none_by_os_exit() -> None:
    assert ElasticLauncher(LaunchPlan(2)).launch(Task(launch_tasks.all_leave, ("sys.exit",))) is None
    error = fail(Task(launch_tasks.all_leave, ("os._exit",)), WorkerError)
    assert "left by os._exit(0) before the run was over" in str(error)


def test_one_rank_leaves_by_sys_exit_and_no_rank_fails() -> None:
    error = fail(Task(launch_tasks.all_leave, ("sys.exit", (1,))), WorkerError)
    assert str(error) == f"rank 1 on {socket.gethostname()} left by sys.exit(0) before the run was over"
    script = Task(launch_tasks.all_leave, ("sys.exit", (1,)), may_exit=True)
    assert ElasticLauncher(LaunchPlan(2)).launch(script) == 3


def test_of_a_script_the_rank_that_left_is_mentioned(tmp_path: Path) -> None:
    script = Task(launch_tasks.end_early, (1, str(tmp_path), "sys.exit", 600.0), may_exit=True)
    error = fail(script, WorkerError)
    assert error.rank == 0
    assert str(error).endswith("(by then rank 1 had left with exit code 0)")


def test_child_of_a_worker_may_exit() -> None:
    assert ElasticLauncher(LaunchPlan(1)).launch(Task(launch_tasks.fork_and_go_on)) == 0


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("lines", "ValueError: first line"),
        ("empty first", "RuntimeError: -- Process 1 ended"),
        ("indented", "RuntimeError: the stage failed"),
        ("loader", "ValueError: Caught ValueError in DataLoader worker process 0. … ValueError: bad sample"),
        ("syntax", "SyntaxError: invalid syntax"),
    ],
)
def test_an_error_of_many_lines_is_reported_in_one(kind: str, line: str) -> None:
    error = fail(Task(launch_tasks.fail_at_length, (kind,)), WorkerError)
    assert str(error).endswith(f" failed: {line}")
    assert "in fail_at_length" in error.traceback


@pytest.mark.parametrize("method", METHODS)
def test_worker_stuck_in_a_collective_is_ended(
    method: str, tmp_path: Path, all_end: Callable[..., bool]
) -> None:
    task = Task(launch_tasks.stuck_in_collective, (str(tmp_path),))
    error = fail(task, WorkerError, start_method=method)
    assert (error.rank, "rank 1 gives up" in str(error)) == (1, True)
    assert all_end(pids(tmp_path))


def test_works_outside_the_main_thread(tmp_path: Path) -> None:
    found: list[Any] = []

    def run() -> None:
        found.append(ElasticLauncher(LaunchPlan(2)).launch(Task(launch_tasks.place, (1,)))["rank"])
        found.append(fail(Task(launch_tasks.fail_on, (1, str(tmp_path))), WorkerError).rank)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(200)
    assert found == ["0", 1]


def test_signal_handlers_are_restored() -> None:
    def mine(*_: object) -> None: ...

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGTERM, mine)
    try:
        ElasticLauncher(LaunchPlan(1)).launch(Task(launch_tasks.place, (1,)))
        assert signal.getsignal(signal.SIGTERM) is mine
        assert all(signal.getsignal(number) == before[number] for number in numbers[1:])
    finally:
        signal.signal(signal.SIGTERM, before[signal.SIGTERM])


def test_restart_once_succeeds() -> None:
    launcher = ElasticLauncher(LaunchPlan(2, max_restarts=1))
    assert launcher.launch(Task(launch_tasks.fail_first_attempt)) == (1, 3.0)


def test_restarts_end(tmp_path: Path) -> None:
    error = fail(Task(launch_tasks.fail_on, (1, str(tmp_path))), WorkerError, max_restarts=1)
    assert error.rank == 1


def test_two_nodes_meet() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values: dict[int, Any] = {}

    def node(number: int) -> None:
        plan = LaunchPlan(1, num_nodes=2, node_rank=number, rdzv_endpoint=f"127.0.0.1:{port}")
        values[number] = ElasticLauncher(plan).launch(Task(launch_tasks.sum_over_ranks, (0,)))

    threads = [threading.Thread(target=node, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert sorted(values.values(), key=str) == [3.0, None]
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in os.environ
