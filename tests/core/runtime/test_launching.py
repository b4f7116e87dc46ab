"""A task in every rank: with the runtime that is given, or with one that is made there."""

from __future__ import annotations

import atexit
import sys
import time
from typing import Any

import pytest

import stratagem
from stratagem import CollectivesWrapper, RunConfig, Task, hookimpl
from stratagem.errors import StratagemError, UsageError
from stratagem.launchers.base import Launcher
from stratagem.resolve.run import assemble
from stratagem.runtime import launching
from stratagem.runtime.launching import attach, launch

HERE = {"strategy": "single", "accelerator": "cpu"}


class Closes:
    """Notes how collectives are closed; launches elsewhere where it is given a launcher."""

    def __init__(self, launcher: Launcher | None = None) -> None:
        self.closed: list[bool] = []
        self.launcher = launcher

    @hookimpl(wrapper=True)
    def launch(self, request: Any) -> Any:
        launcher = yield
        return self.launcher or launcher

    @hookimpl(wrapper=True)
    def reduce(self, request: Any) -> Any:
        closed = self.closed

        class Noting(CollectivesWrapper):
            def close(self, failed: bool = False) -> None:
                closed.append(failed)
                super().close(failed)

        return Noting((yield))


def run_with(plugin: Any, **config: Any) -> Any:
    return assemble(RunConfig(**{**HERE, "extensions": (plugin,), **config}), {})


def test_a_rank_in_this_process_works_with_the_runtime_it_was_given() -> None:
    closes, runtime = Closes(), stratagem.Runtime(**HERE)
    run = run_with(closes)

    def work(given: Any, first: int, second: int) -> Any:
        assert given is runtime
        assert (given.session.run, given.in_launching_process) == (run, True)
        assert closes.closed == []
        return first + second

    assert launch(run, Task(work, (1, 2)), runtime) == 3
    assert closes.closed == [False]
    with pytest.raises(StratagemError, match="isn't live"):
        _ = runtime.session


def test_without_a_runtime_one_is_made_of_the_runs_settings() -> None:
    closes = Closes()
    run = run_with(closes, seed=5, max_restarts=2)
    made = launch(run, Task(lambda runtime: runtime))
    assert (made.config, made.in_launching_process) == (run.config, True)
    assert made.config.extensions == (closes,)


def test_a_rank_that_fails_says_when_and_does_not_wait() -> None:
    closes, began = Closes(), time.time()

    def fail(runtime: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        launch(run_with(closes), Task(fail), stratagem.Runtime(**HERE))
    assert closes.closed == [True]
    assert began <= raised.value.failed_at <= time.time()  # type: ignore[attr-defined]  # launch sets it


class Elsewhere(Launcher):
    """Stands for a launcher of other processes: keeps what it is given, and starts none."""

    worker_environment = "env"

    def launch(self, task: Task) -> Any:
        self.task = task
        return "launched"


def test_other_processes_get_the_configuration_and_assemble_the_run_themselves() -> None:
    launcher = Elsewhere()
    closes = Closes(launcher)
    run = run_with(closes)
    runtime = stratagem.Runtime(**HERE)
    assert launch(run, Task(str.upper, ("word",), may_exit=True, preload=("json",)), runtime) == "launched"
    config, given, function, args = launcher.task.args
    assert (config, given, function, args) == (run.worker_config(launcher), None, str.upper, ("word",))
    assert config.environment == "env"
    assert (launcher.task.may_exit, launcher.task.preload) == (True, ("json",))

    # And in a worker, whose variables are its launcher's:
    def look(runtime: Any) -> Any:
        return runtime.config.strategy, runtime.in_launching_process

    alone = RunConfig(**HERE, environment="single", extensions=(closes,))
    assert launcher.task.function(alone, None, look, ()) == ("single", False)
    assert closes.closed == [False]


@pytest.mark.parametrize("has_error", [False, True])
def test_a_script_is_a_rank_until_it_ends(monkeypatch: pytest.MonkeyPatch, has_error: bool) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    closes, runtime = Closes(), stratagem.Runtime(**HERE)
    attach(run_with(closes), runtime)
    assert runtime.session.collectives.world_size == 1
    assert runtime.in_launching_process
    (end,) = at_exit
    monkeypatch.delattr(sys, "last_value", raising=False)
    if has_error:
        monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)
    end()
    assert closes.closed == [has_error]


def test_a_script_is_no_rank_of_processes_that_were_not_started() -> None:
    run, runtime = run_with(Closes(), strategy="ddp", devices=2), stratagem.Runtime(**HERE)
    with pytest.raises(
        UsageError, match=r"without a function needs 2 running processes: start the script with"
    ):
        attach(run, runtime)
    with pytest.raises(StratagemError, match="isn't live"):
        _ = runtime.session
    assert launching.Runtime is stratagem.Runtime
