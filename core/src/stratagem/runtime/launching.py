"""Runs a task in every rank of a run, with one `Runtime` per process."""

from __future__ import annotations

import atexit
import sys
import time
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Callable

import torch

from stratagem.errors import UsageError
from stratagem.launchers.base import Task
from stratagem.resolve.run import Run, assemble
from stratagem.runtime.out_of_memory import device_memory_error
from stratagem.runtime.runtime import Runtime

if TYPE_CHECKING:
    from stratagem.config import RunConfig


def launch(run: Run, task: Task, runtime: Runtime | None = None) -> Any:
    """Call `task.function(runtime, *task.args)` in every rank of `run`; see `Launcher.launch`.

    Args:
        run: the run, assembled in this process.
        task: the work of each rank.
        runtime: the runtime to use if this process is a rank itself; None makes one.
    """
    launcher = run.launcher()
    if launcher.in_process:
        return launcher.launch(replace(task, function=_work, args=(run, runtime, task.function, task.args)))
    config = run.worker_config(launcher)
    return launcher.launch(replace(task, function=_work, args=(config, None, task.function, task.args)))


def attach(run: Run, runtime: Runtime) -> None:
    """Make the calling script a rank of `run` until it ends.

    Raises:
        UsageError: `run` needs processes that aren't running.
    """
    if not run.launcher().in_process:
        raise UsageError(
            f"launch() without a function needs {run.plan.world_size} running processes: start the script with "
            "`stratagem run`, or pass the function that each rank is to run"
        )
    runtime.open(run, in_launching_process=True)
    # Python keeps the error that ends a script in `sys.last_value`. A rank that failed must not wait for the others.
    atexit.register(lambda: runtime.close(failed=getattr(sys, "last_value", None) is not None))


def _work(
    run: Run | RunConfig, runtime: Runtime | None, function: Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    """Open the runtime of a worker, call the task's function, and close the runtime."""
    here = run if isinstance(run, Run) else assemble(run)
    if runtime is None:
        arguments = {field.name: getattr(here.config, field.name) for field in fields(here.config)}
        runtime = Runtime(plugins=arguments.pop("extensions"), **arguments)
    runtime.open(here, in_launching_process=isinstance(run, Run))
    try:
        result = function(runtime, *args)
    except BaseException as error:
        # Closing makes the other ranks fail, too. The launcher reports the first failure, so note the time before.
        failed_at = time.time()
        of_memory = None
        if isinstance(error, torch.OutOfMemoryError) and not isinstance(error, UsageError):
            # An error in the report must neither hide the original error nor keep the other ranks waiting.
            with suppress(Exception):
                of_memory = device_memory_error(error, runtime.session)
        ended = of_memory or error
        ended.failed_at = failed_at  # type: ignore[attr-defined]  # exceptions take any attribute
        runtime.close(failed=True)
        if of_memory is not None:
            raise of_memory from error
        raise
    runtime.close()
    return result
