"""Every start method: what workers see, what comes back, and which tasks are refused."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import launch_tasks
import pytest
from stratagem_launch.elastic import ElasticLauncher

from stratagem import LaunchPlan, Task
from stratagem.errors import UsageError
from stratagem.launchers.in_process import InProcessLauncher

IMPORTING = ("forkserver", "spawn", "popen")


def launch(task: Task, processes: int = 2, **plan: Any) -> Any:
    return ElasticLauncher(LaunchPlan(processes, **plan)).launch(task)


@pytest.mark.parametrize("method", IMPORTING)
def test_returns_value_of_rank_0(method: str, private_tmp: Path) -> None:
    seen = launch(Task(launch_tasks.place, ("given",)), start_method=method)
    assert seen["argument"] == "given"
    assert (seen["rank"], seen["local_rank"], seen["world_size"]) == ("0", "0", "2")
    assert seen["node_rank"] == "0"
    assert seen["pid"] != os.getpid()
    assert (seen["parent"] == os.getpid()) == (method != "forkserver")
    assert list(private_tmp.glob("stratagem-*")) == []


def test_fork_takes_lambdas_and_locals(start_program: Any) -> None:
    program = start_program(
        """
        from stratagem import LaunchPlan, Task
        from stratagem_launch.elastic import ElasticLauncher
        import os
        seen = {"parent": os.getpid()}
        value = ElasticLauncher(LaunchPlan(2, start_method="fork")).launch(
            Task(lambda: (os.getppid() == seen["parent"], os.environ["RANK"], os.environ["WORLD_SIZE"]))
        )
        assert value == (True, "0", "2"), value
        print("good")
        """
    )
    out, err = program.communicate(timeout=240)
    assert (program.returncode, out) == (0, "good\n"), err


def test_a_fork_leaves_its_parents_garbage_alone(start_program: Any) -> None:
    # What ends there may need threads that aren't here, as a process group's does.
    program = start_program(
        """
        import gc, os
        from stratagem import LaunchPlan, Task
        from stratagem_launch.elastic import ElasticLauncher

        class Ends:
            def __del__(self):
                open(f"ended-{os.getpid()}", "w").close()

        gc.disable()
        garbage = Ends()
        garbage.itself = garbage
        del garbage
        collect = Task(lambda: (gc.collect(), os.path.exists(f"ended-{os.getpid()}"))[1])
        assert ElasticLauncher(LaunchPlan(1, start_method="fork")).launch(collect) is False
        gc.collect()
        assert os.path.exists(f"ended-{os.getpid()}")
        print("good")
        """
    )
    out, err = program.communicate(timeout=240)
    assert (program.returncode, out) == (0, "good\n"), err


@pytest.mark.parametrize("method", IMPORTING)
def test_refuses_a_task_that_cannot_be_pickled(method: str, private_tmp: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r'<lambda>\.lock of the task .*_thread.lock.*start_method="fork"'):
        launch(Task(lambda: lock), start_method=method)
    assert list(private_tmp.glob("stratagem-*")) == []


def test_big_value_comes_back() -> None:
    assert len(launch(Task(launch_tasks.big, (50_000_000,)))) == 50_000_000


def test_value_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(UsageError, match="rank 0 returned a function"):
        launch(Task(launch_tasks.unpicklable_value))


def test_each_worker_gets_its_share_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert launch(Task(launch_tasks.threads), 1) == (cores, str(cores))
    assert launch(Task(launch_tasks.threads), 2) == (max(1, cores // 2), str(max(1, cores // 2)))


@pytest.mark.parametrize("method", ["forkserver", "popen"])
def test_omp_num_threads_wins(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launch(Task(launch_tasks.threads), start_method=method) == (3, "3")


def test_omp_num_threads_of_the_plan_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launch(Task(launch_tasks.threads), environ={"OMP_NUM_THREADS": "4"}) == (4, "4")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_data_loaders_start_as_anywhere_else(method: str) -> None:
    # The launching process's own default, not the way in which the worker was started.
    default = multiprocessing.get_start_method()
    assert launch(Task(launch_tasks.default_start_method), 1, start_method=method) == default


def test_workers_see_todays_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN_BEFORE", "1")
    launch(Task(launch_tasks.variable, ("GIVEN_BEFORE",)), 1)  # the fork server runs from here on
    monkeypatch.setenv("GIVEN_AFTER", "2")
    monkeypatch.delenv("GIVEN_BEFORE")
    assert launch(Task(launch_tasks.variable, ("GIVEN_AFTER",)), 1) == "2"
    assert launch(Task(launch_tasks.variable, ("GIVEN_BEFORE",)), 1) is None
    assert launch(Task(launch_tasks.variable, ("PLANNED",)), 1, environ={"PLANNED": "3"}) == "3"
    assert "PLANNED" not in os.environ


@pytest.mark.parametrize("method", ["forkserver", "popen"])
def test_output_is_kept_and_shown(method: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    launch(Task(launch_tasks.speak), start_method=method, log_dir=str(tmp_path))
    shown = capfd.readouterr()
    for rank in (0, 1):
        folder = tmp_path / "attempt_0" / str(rank)
        assert (folder / "stdout.log").read_text() == f"out of rank {rank}\n"
        assert (folder / "stderr.log").read_text() == f"err of rank {rank}\n"
        assert f"[rank {rank}] out of rank {rank}\n" in shown.out
        assert f"[rank {rank}] err of rank {rank}\n" in shown.err


@pytest.mark.parametrize("method", ["forkserver", pytest.param("popen", marks=pytest.mark.long)])
def test_classes_of_a_guarded_script(method: str, start_program: Any) -> None:
    program = start_program(
        """
        import os, sys
        from dataclasses import dataclass
        from stratagem import LaunchPlan, Task
        from stratagem_launch.elastic import ElasticLauncher

        @dataclass
        class Mine:
            number: int

        def double(mine):
            return Mine(mine.number * 2)

        if __name__ == "__main__":
            value = ElasticLauncher(LaunchPlan(2, start_method=sys.argv[1])).launch(Task(double, (Mine(4),)))
            assert value == Mine(8), value
            print("good")
        """,
        method,
    )
    out, err = program.communicate(timeout=240)
    assert (program.returncode, out) == (0, "good\n"), err


@pytest.mark.parametrize("method", IMPORTING)
def test_an_unguarded_script_gets_an_error_that_names_the_guard(method: str, start_program: Any) -> None:
    program = start_program(
        """
        import sys
        from stratagem.errors import UsageError
        from stratagem import LaunchPlan, Task
        from stratagem_launch.elastic import ElasticLauncher

        def nothing():
            pass

        try:
            ElasticLauncher(LaunchPlan(2, start_method=sys.argv[1])).launch(Task(nothing))
        except UsageError as error:
            print(error)
        """,
        method,
    )
    out, err = program.communicate(timeout=240)
    assert (program.returncode, err) == (0, "")
    assert out.count("\n") == 1
    assert 'put the launching lines under `if __name__ == "__main__":`' in out


@pytest.mark.parametrize("method", ["forkserver", pytest.param("popen", marks=pytest.mark.long)])
def test_python_c(method: str) -> None:
    source = f"""
import sys
sys.path.insert(0, {str(Path(launch_tasks.__file__).parent)!r})
import launch_tasks
from stratagem import LaunchPlan, Task
from stratagem_launch.elastic import ElasticLauncher
class Mine:
    number = 4
def double(mine):
    return other(mine) * 2
def other(mine):
    return mine.number
launcher = ElasticLauncher(LaunchPlan(1, start_method={method!r}))
assert launcher.launch(Task(launch_tasks.place, (5,)))["argument"] == 5
print(launcher.launch(Task(double, (Mine(),), notice=print)))
"""
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "('double', 'other', 'Mine')\n8\n"


def test_fork_after_compute_is_refused(start_program: Any) -> None:
    program = start_program(
        """
        import torch
        from stratagem.errors import UsageError
        from stratagem import LaunchPlan, Task
        from stratagem_launch.elastic import ElasticLauncher
        launcher = ElasticLauncher(LaunchPlan(2, start_method="fork"))
        print(launcher.launch(Task(lambda: "before")))
        torch.randn(1000, 1000) @ torch.randn(1000, 1000)
        try:
            launcher.launch(Task(lambda: "after"))
        except UsageError as error:
            print(error)
        """,
        OMP_NUM_THREADS="2",
    )
    out, err = program.communicate(timeout=240)
    first, second = out.splitlines()
    assert first == "before", err
    assert 'start_method="fork" can\'t be used after torch has started its compute threads' in second


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"start_method": "thread"}, "must be one of forkserver, spawn, popen, fork"),
        ({"processes_per_node": 0}, "at least 1"),
        ({"num_nodes": 2}, "rdzv_endpoint"),
    ],
)
def test_plans_that_cannot_be_met(plan: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ElasticLauncher(LaunchPlan(**{"processes_per_node": 2, **plan}))


def test_in_process_runs_here() -> None:
    seen: list[int] = []
    assert InProcessLauncher().launch(Task(seen.append, (os.getpid(),))) is None
    assert seen == [os.getpid()]
    assert InProcessLauncher().in_process
    assert not ElasticLauncher(LaunchPlan(1)).in_process


def test_importing_the_launchers_leaves_torch_out() -> None:
    modules = "stratagem_launch.elastic, stratagem.launchers.in_process"
    source = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", source], check=True, timeout=240)
